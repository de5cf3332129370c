/* Products of narrow matrices and their gradients. Every sum runs over its terms in order, whatever the number of threads. */

#include "products.h"

#include <stdlib.h>

enum { SPAN = 16 * ROWS }; /* rows of one piece of work */

/* to[k][n] = w[n][k] */
static float *transposed(const float *w, long outs, long ins) {
    float *to = malloc(sizeof(float) * outs * ins);
    for (long n = 0; n < outs; n += LANES)
        for (long k = 0; k < ins; k++)
            for (long i = 0; i < LANES; i++) to[k * outs + n + i] = w[(n + i) * ins + k];
    return to;
}

/* c = a b, or c = a b + bias, with a (rows × depth) and b (depth × wide) in one piece each */
static void product_of(const float *a, const float *b, const float *bias, float *c, long rows, long depth, long wide,
                       long threads) {
#pragma omp parallel for if (threads > 1) num_threads(threads)
    for (long m = 0; m < rows; m += SPAN) {
        long now = rows - m < SPAN ? rows - m : SPAN;
        for (long n = 0; n < wide; n += WIDE) {
            long vectors = (wide - n < WIDE ? wide - n : WIDE) / LANES;
            for (long k = 0; k < depth; k += DEPTH) {
                long terms = depth - k < DEPTH ? depth - k : DEPTH;
                const float *from = k ? c + m * wide + n : bias ? bias + n : NULL;
                grown_product(a + m * depth + k, depth, 1, b + k * wide + n, wide, c + m * wide + n, wide, now, vectors, terms,
                              1.0f, from, k ? wide : 0);
            }
        }
    }
}

/* x Wᵀ + b, W outs × ins */
void product(long rows, long ins, long outs, const float *x, const float *w, const float *bias, float *out, long threads) {
    float *right = transposed(w, outs, ins);
    product_of(x, right, bias, out, rows, ins, outs, threads);
    free(right);
}

/* g W */
void product_back(long rows, long ins, long outs, const float *grad, const float *w, float *dx, long threads) {
    product_of(grad, w, NULL, dx, rows, outs, ins, threads);
}

/* gᵀ x */
void weight_back(long rows, long ins, long outs, const float *grad, const float *x, float *dw, long threads) {
#pragma omp parallel for if (threads > 1) num_threads(threads)
    for (long m = 0; m < outs; m += SPAN) {
        long now = outs - m < SPAN ? outs - m : SPAN;
        for (long k = 0; k < rows; k += DEPTH) {
            long terms = rows - k < DEPTH ? rows - k : DEPTH;
            for (long n = 0; n < ins; n += WIDE) {
                long vectors = (ins - n < WIDE ? ins - n : WIDE) / LANES;
                float *c = dw + m * ins + n;
                grown_product(grad + k * outs + m, 1, outs, x + k * ins + n, ins, c, ins, now, vectors, terms, 1.0f, k ? c : NULL,
                              ins);
            }
        }
    }
}
