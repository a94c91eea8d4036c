#include <cstring>

#include "chairlift/ops.h"
#include "kernels/row_loop.h"

namespace chairlift {

void gather_rows(Context& context, const float* x, const int32_t* indices, int64_t num_rows, int64_t width,
                 float* out) {
  const size_t bytes = static_cast<size_t>(width) * sizeof(float);
  for_each_row(context, num_rows, width,
               [&](int64_t row) { std::memcpy(out + row * width, x + indices[row] * width, bytes); });
}

}  // namespace chairlift
