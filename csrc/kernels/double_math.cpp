#include "kernels/double_math.h"

#include <cstdint>
#include <cstring>

namespace chairlift {
namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kInverseLn2 = 0x1.71547652b82fep+0, kTwoOverPi = 0x1.45f306dc9c883p-1;
// ln 2 and pi / 2 in parts: all but the last end in 20 zero bits, so an integer below 2^20 times them is exact.
constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kHalfPi1 = 0x1.921fb544p+0, kHalfPi2 = 0x1.0b4611a6p-34, kHalfPi3 = 0x1.3198a2e037073p-69;

// Taylor coefficients, 1 / k!; the arguments are reduced to where these reach full precision.
struct InverseFactorials {
  double value[19] = {1.0};
  constexpr InverseFactorials() {
    double factorial = 1.0;
    for (int k = 1; k < 19; ++k) value[k] = 1.0 / (factorial *= k);
  }
};
constexpr InverseFactorials kInverse;

// Adding and subtracting 1.5 * 2^52 rounds to an integer, to nearest even.
double round_to_integer(double x) {
  constexpr double kMagic = 6755399441055744.0;
  const double shifted = x + kMagic;
  return shifted - kMagic;
}

double power_of_two(int64_t exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// sum over k = last, last - 2, ..., first of (-1)^(k / 2) r^k / k!, divided by r^first.
template <int kFirst, int kLast>
double alternating_series(double square) {
  double sum = kInverse.value[kLast];
  for (int k = kLast - 2; k >= kFirst; k -= 2) sum = kInverse.value[k] - square * sum;
  return sum;
}

}  // namespace

double log_f64(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1022;
  bits = (bits & 0x000fffffffffffffu) | 0x3fe0000000000000u;
  double m;  // in [0.5, 1)
  std::memcpy(&m, &bits, sizeof(m));
  if (m < kSqrtHalf) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);  // log m = 2 atanh s = 2 (s + s^3 / 3 + ...), |s| < 0.172
  const double square = s * s;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  const double e = static_cast<double>(exponent);
  return e * kLn2High + (e * kLn2Low + 2 * s * sum);
}

double exp_f64(double x) {
  const double n = round_to_integer(x * kInverseLn2);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = kInverse.value[16];
  for (int k = 15; k >= 0; --k) sum = kInverse.value[k] + r * sum;
  return sum * power_of_two(static_cast<int64_t>(n));
}

SinCos sin_cos_f64(double x) {
  const double n = round_to_integer(x * kTwoOverPi);
  const double r = ((x - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;  // |r| <= pi / 4
  const double square = r * r;
  const double s = r * alternating_series<1, 17>(square), c = alternating_series<0, 18>(square);
  switch (static_cast<int64_t>(n) & 3) {
    case 0: return {s, c};
    case 1: return {c, -s};
    case 2: return {-s, -c};
    default: return {-c, s};
  }
}

}  // namespace chairlift
