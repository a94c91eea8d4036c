// log, exp, sin and cos in double precision, to about 1e-15, from polynomials of our own.
//
// For tables and for one number per row; hot loops use the f32 functions of kernels/math.h. No libm: its results
// differ between versions and machines, and a model's bits must not.
#pragma once

namespace chairlift {

double log_f64(double x);  // x positive, finite and normal
double exp_f64(double x);  // |x| < 700

struct SinCos {
  double sin, cos;
};
SinCos sin_cos_f64(double x);  // |x| < 2^20

}  // namespace chairlift
