#include "chairlift/ops.h"
#include "kernels/row_loop.h"

namespace chairlift {

void rms_norm(Context& context, const float* x, int64_t rows, int64_t width, const float* weight, float eps,
              float* y) {
  const auto kernel = context.kernels().step.row.rms_norm;
  for_each_row(context, rows, width,
               [&](int64_t row) { kernel(x + row * width, width, weight, eps, y + row * width); });
}

}  // namespace chairlift
