/* e^x for x ≤ 0 within 2 units in the last place, in a form that compilers turn into vectors; 0 below −87. */

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float exponential(float x) {
    float bounded = x < -87.0f ? -87.0f : x;
    float n = rintf(bounded * 1.44269504f);
    float r = fmaf(n, -0.693359375f, bounded);
    r = fmaf(n, 2.12194440e-4f, r);
    float y = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    y = fmaf(y, r, 8.3334519073e-3f);
    y = fmaf(y, r, 4.1665795894e-2f);
    y = fmaf(y, r, 1.6666665459e-1f);
    y = fmaf(y, r, 5.0000001201e-1f);
    y = fmaf(y * r, r, r) + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : y * power;
}
