/* c[m][n] = from[m][n] + alpha · Σ_k a[m·row + k·step] · b[k·ldb + n] for `rows` rows, `vectors` vectors of columns and at most
   DEPTH terms: tiles of 6 rows by up to 4 vectors that stay in registers. Each sum runs over k in order. */

#include "vector.h"

#include <string.h>

enum { ROWS = 6, WIDE = TILE_VECTORS * LANES, DEPTH = 128 };

#define TILE(N)                                                                                                                \
    static inline void tile_##N(const float *a, long row, long step, const float *b, long ldb, float *c, long ldc, long depth, \
                                float alpha, const float *from, long from_row) {                                               \
        vector sum[ROWS][N];                                                                                                   \
        for (int m = 0; m < ROWS; m++)                                                                                         \
            for (int n = 0; n < N; n++) sum[m][n] = zero();                                                                    \
        for (long k = 0; k < depth; k++) {                                                                                     \
            vector right[N];                                                                                                   \
            for (int n = 0; n < N; n++) right[n] = load(b + k * ldb + n * LANES);                                              \
            for (int m = 0; m < ROWS; m++) {                                                                                   \
                vector left = all(a[m * row + k * step]);                                                                      \
                for (int n = 0; n < N; n++) sum[m][n] = multiply_add(left, right[n], sum[m][n]);                               \
            }                                                                                                                  \
        }                                                                                                                      \
        for (int m = 0; m < ROWS; m++)                                                                                         \
            for (int n = 0; n < N; n++) {                                                                                      \
                vector first = from ? load(from + m * from_row + n * LANES) : zero();                                          \
                store(c + m * ldc + n * LANES, multiply_add(all(alpha), sum[m][n], first));                                    \
            }                                                                                                                  \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)

static void tile(int vectors, const float *a, long row, long step, const float *b, long ldb, float *c, long ldc, long depth,
                 float alpha, const float *from, long from_row) {
    switch (vectors) {
    case 1: tile_1(a, row, step, b, ldb, c, ldc, depth, alpha, from, from_row); break;
    case 2: tile_2(a, row, step, b, ldb, c, ldc, depth, alpha, from, from_row); break;
    case 3: tile_3(a, row, step, b, ldb, c, ldc, depth, alpha, from, from_row); break;
    default: tile_4(a, row, step, b, ldb, c, ldc, depth, alpha, from, from_row);
    }
}

static void grown_product(const float *a, long row, long step, const float *b, long ldb, float *c, long ldc, long rows,
                          long vectors, long depth, float alpha, const float *from, long from_row) {
    for (long v = 0; v < vectors; v += TILE_VECTORS) {
        int n = vectors - v < TILE_VECTORS ? (int)(vectors - v) : TILE_VECTORS;
        const float *first = from ? from + v * LANES : NULL;
        long m = 0;
        for (; m + ROWS <= rows; m += ROWS)
            tile(n, a + m * row, row, step, b + v * LANES, ldb, c + m * ldc + v * LANES, ldc, depth, alpha,
                 first ? first + m * from_row : NULL, from_row);
        if (m < rows) { /* the last few rows: a tile of a copy, filled up with rows of zeros */
            float left[ROWS * DEPTH], out[ROWS * WIDE], start[ROWS * WIDE] = {0};
            for (long i = 0; i < ROWS; i++)
                for (long k = 0; k < depth; k++) left[i * DEPTH + k] = i < rows - m ? a[(m + i) * row + k * step] : 0.0f;
            for (long i = 0; first && i < rows - m; i++)
                memcpy(start + i * WIDE, first + (m + i) * from_row, sizeof(float) * n * LANES);
            tile(n, left, DEPTH, 1, b + v * LANES, ldb, out, WIDE, depth, alpha, start, WIDE);
            for (long i = 0; i < rows - m; i++) memcpy(c + (m + i) * ldc + v * LANES, out + i * WIDE, sizeof(float) * n * LANES);
        }
    }
}
