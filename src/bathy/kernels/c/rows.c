/* What a sub-layer does to each row (a token of the batch): dropout, ω · x + y, layer norm, and the way back; and the softmax
   of the loss. Sums over rows are taken in chunks of fixed size, so that they do not depend on the number of threads. What is not a
   number stays none, dropped or not. */

#include "scalar.h"
#include "vector.h"

#include <stdlib.h>

enum { CHUNK = 256 };

/* z = ω · x + dropout(y), the product rounded before it is added; z may be y. ω is a vector, or NULL for the number `omega`; no draws: no dropout */
void join(long rows, long width, const float *x, const float *y, const int16_t *draws, int16_t level, float kept, const float *vector,
          float omega, float *z, long threads) {
#pragma omp parallel for if (threads > 1) num_threads(threads)
    for (long r = 0; r < rows; r++) {
        const float *a = x + r * width, *b = y + r * width;
        const int16_t *bits = draws ? draws + r * width : NULL;
        float *out = z + r * width;
        if (bits)
            for (long d = 0; d < width; d++) out[d] = b[d] * (bits[d] >= level ? kept : 0.0f);
        else if (out != b)
            memcpy(out, b, sizeof(float) * width);
        if (vector)
            for (long d = 0; d < width; d++) out[d] += vector[d] * a[d];
        else
            for (long d = 0; d < width; d++) out[d] += omega * a[d];
    }
}

/* γ · (x − μ)/σ + ν, and μ and 1/σ of each row */
void norm(long rows, long width, const float *x, const float *gamma, const float *nu, float eps, float *out, float *mean,
          float *deviation, long threads) {
#pragma omp parallel for if (threads > 1) num_threads(threads)
    for (long r = 0; r < rows; r++) {
        const float *a = x + r * width;
        float sum = 0.0f, square = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (long d = 0; d < width; d++) sum += a[d];
        float mu = sum / width;
#pragma omp simd reduction(+ : square)
        for (long d = 0; d < width; d++) square += (a[d] - mu) * (a[d] - mu);
        float one = 1.0f / sqrtf(square / width + eps);
        float *to = out + r * width;
        if (nu)
            for (long d = 0; d < width; d++) to[d] = fmaf((a[d] - mu) * one, gamma[d], nu[d]);
        else
            for (long d = 0; d < width; d++) to[d] = (a[d] - mu) * one * gamma[d];
        mean[r] = mu, deviation[r] = one;
    }
}

/* dx = (g γ − mean(g γ) − x̂ · mean(g γ x̂)) / σ; the gradients of γ and ν are sums over rows, and so is Σ dx ⊙ stream, the gradient
   of ω where x = ω · stream + …; ν's and ω's may be NULL */
void norm_back(long rows, long width, const float *grad, const float *x, const float *mean, const float *deviation,
               const float *gamma, const float *stream, float *dx, float *d_gamma, float *d_nu, float *d_omega, long threads) {
    long chunks = (rows + CHUNK - 1) / CHUNK;
    float *sums = calloc(3 * chunks * width, sizeof *sums);
#pragma omp parallel for if (threads > 1) num_threads(threads)
    for (long c = 0; c < chunks; c++) {
        float *of_gamma = sums + 3 * c * width, *of_nu = of_gamma + width, *of_omega = of_nu + width;
        for (long r = c * CHUNK; r < rows && r < (c + 1) * CHUNK; r++) {
            const float *g = grad + r * width, *a = x + r * width;
            float mu = mean[r], one = deviation[r], sum = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : sum, along)
            for (long d = 0; d < width; d++) {
                float standard = (a[d] - mu) * one, part = g[d] * gamma[d];
                of_gamma[d] += g[d] * standard, of_nu[d] += g[d];
                sum += part, along += part * standard;
            }
            sum /= width, along /= width;
            float *to = dx + r * width;
            for (long d = 0; d < width; d++) to[d] = (g[d] * gamma[d] - sum - (a[d] - mu) * one * along) * one;
            if (d_omega)
                for (long d = 0; d < width; d++) of_omega[d] += to[d] * stream[r * width + d];
        }
    }
    float *results[3] = {d_gamma, d_nu, d_omega};
    for (int part = 0; part < 3; part++) {
        if (!results[part]) continue;
        memset(results[part], 0, sizeof(float) * width);
        for (long c = 0; c < chunks; c++)
            for (long d = 0; d < width; d++) results[part][d] += sums[(3 * c + part) * width + d];
    }
    free(sums);
}

/* Σ over rows of a ⊙ b; of a alone where b is NULL */
void sum_rows(long rows, long width, const float *a, const float *b, float *out, long threads) {
    long chunks = (rows + CHUNK - 1) / CHUNK;
    float *sums = calloc(chunks * width, sizeof *sums);
#pragma omp parallel for if (threads > 1) num_threads(threads)
    for (long c = 0; c < chunks; c++) {
        float *sum = sums + c * width;
        for (long r = c * CHUNK; r < rows && r < (c + 1) * CHUNK; r++)
            if (b)
                for (long d = 0; d < width; d++) sum[d] += a[r * width + d] * b[r * width + d];
            else
                for (long d = 0; d < width; d++) sum[d] += a[r * width + d];
    }
    memset(out, 0, sizeof(float) * width);
    for (long c = 0; c < chunks; c++)
        for (long d = 0; d < width; d++) out[d] += sums[c * width + d];
    free(sums);
}

/* x · m / (1 − p), m = 0 where the draw is below the level */
void mask(long count, const float *x, const int16_t *draws, int16_t level, float kept, float *out, long threads) {
#pragma omp parallel for simd if (parallel : threads > 1) num_threads(threads)
    for (long i = 0; i < count; i++) out[i] = x[i] * (draws[i] >= level ? kept : 0.0f);
}

/* dropout(relu(x)); no draws: relu(x) */
void relu_mask(long count, const float *x, const int16_t *draws, int16_t level, float kept, float *out, long threads) {
    if (draws) {
#pragma omp parallel for simd if (parallel : threads > 1) num_threads(threads)
        for (long i = 0; i < count; i++) out[i] = (x[i] <= 0.0f ? 0.0f : x[i]) * (draws[i] >= level ? kept : 0.0f);
    } else {
#pragma omp parallel for simd if (parallel : threads > 1) num_threads(threads)
        for (long i = 0; i < count; i++) out[i] = x[i] <= 0.0f ? 0.0f : x[i];
    }
}

/* the gradient of x from that of dropout(relu(x)), whose result is above 0 just where x was above 0 and was kept */
void relu_mask_back(long count, const float *grad, const float *result, float kept, float *out, long threads) {
#pragma omp parallel for simd if (parallel : threads > 1) num_threads(threads)
    for (long i = 0; i < count; i++) out[i] = result[i] <= 0.0f ? 0.0f : grad[i] * kept;
}

/* Logits become softmax(z) − (1 − ε) e_y; the NLL and z_y of each row */
void softmax_loss(long rows, long tokens, float *z, const int64_t *target, float smoothing, float *nll, float *chosen,
                  long threads) {
#pragma omp parallel for if (threads > 1) num_threads(threads)
    for (long r = 0; r < rows; r++) {
        float *p = z + r * tokens, top = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : top)
        for (long t = 0; t < tokens; t++) top = p[t] > top ? p[t] : top;
        chosen[r] = p[target[r]];
#pragma omp simd reduction(+ : sum)
        for (long t = 0; t < tokens; t++) sum += (p[t] = exponential(p[t] - top));
        float one = 1.0f / sum;
        for (long t = 0; t < tokens; t++) p[t] *= one;
        nll[r] = top + logf(sum) - chosen[r];
        p[target[r]] += smoothing - 1.0f;
    }
}

long lanes(void) { return LANES; }
