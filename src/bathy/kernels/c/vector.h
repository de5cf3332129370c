/* Vectors of the processor that this is compiled for. Without fused multiply-add there is nothing to gain: no build. */
#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vector;
enum { LANES = 16, TILE_VECTORS = 4 };
#define load(p) _mm512_loadu_ps(p)
#define store(p, v) _mm512_storeu_ps(p, v)
#define all(x) _mm512_set1_ps(x)
#define zero() _mm512_setzero_ps()
#define multiply(a, b) _mm512_mul_ps(a, b)
#define multiply_add(a, b, c) _mm512_fmadd_ps(a, b, c)
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
typedef __m256 vector;
enum { LANES = 8, TILE_VECTORS = 2 };
#define load(p) _mm256_loadu_ps(p)
#define store(p, v) _mm256_storeu_ps(p, v)
#define all(x) _mm256_set1_ps(x)
#define zero() _mm256_setzero_ps()
#define multiply(a, b) _mm256_mul_ps(a, b)
#define multiply_add(a, b, c) _mm256_fmadd_ps(a, b, c)
#elif defined(__aarch64__)
#include <arm_neon.h>
typedef float32x4_t vector;
enum { LANES = 4, TILE_VECTORS = 4 };
#define load(p) vld1q_f32(p)
#define store(p, v) vst1q_f32(p, v)
#define all(x) vdupq_n_f32(x)
#define zero() vdupq_n_f32(0.0f)
#define multiply(a, b) vmulq_f32(a, b)
#define multiply_add(a, b, c) vfmaq_f32(c, a, b)
#else
#error "no vector unit with fused multiply-add"
#endif
