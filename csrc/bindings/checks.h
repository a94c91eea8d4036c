// What Python hands over is refused here, with the numbers, before any kernel sees it.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>

namespace chairlift {

// Throws std::invalid_argument with the parts joined; they become text only then.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) refuse(parts...);
}

// A 2-d array must have `columns` columns and at least `rows` rows.
template <typename Array>
void check_matrix(const char* name, const Array& array, int64_t rows, int64_t columns) {
  const auto have_rows = static_cast<int64_t>(array.shape(0)), have_columns = static_cast<int64_t>(array.shape(1));
  require(have_rows >= rows && have_columns == columns, name, " is [", have_rows, ", ", have_columns,
          "]; it must have ", columns, " columns and at least ", rows, " rows");
}

}  // namespace chairlift
