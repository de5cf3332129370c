/* Attention of short sequences: a head's scores, softmax, dropout and values, while they are in the cache; and the way back. */

#include "products.h"
#include "scalar.h"

enum { MOST = 128 }; /* longest sequence, widest head */

typedef struct {
    long item, head, token; /* how far apart they are in memory; the numbers of a head are next to each other */
} strides;

typedef struct {
    long items, heads, queries, keys, width;
    float scale;
    const float *bias; /* 0 or −∞ on the scores of an item, or of an item's query, or of a query; none: NULL */
    long bias_item, bias_query;
    long causal;
    const int16_t *draws; /* one for each probability, and LANES more; none: NULL */
    int32_t level;        /* kept where the draw is at least this */
    float kept;           /* what kept probabilities are multiplied by */
    long threads;
    strides q, k, v, dq, dk, dv;
} settings;

static void small_product(const float *a, long row, long step, const float *b, long ldb, float *c, long ldc, long rows,
                          long vectors, long depth, float alpha) {
    grown_product(a, row, step, b, ldb, c, ldc, rows, vectors, depth, alpha, NULL, 0);
}

static long padded(long n) { return (n + LANES - 1) / LANES * LANES; }

/* to[c][t] = from[t][c], zero beyond the last token */
static void transpose(const float *from, long token, long tokens, long width, float *to, long wide) {
    for (long c = 0; c < width; c++) {
        for (long t = 0; t < tokens; t++) to[c * wide + t] = from[t * token + c];
        for (long t = tokens; t < wide; t++) to[c * wide + t] = 0.0f;
    }
}

/* The bias of an item's queries as a row that is padded with −∞; where each query has its own, row by row */
static const float *bias_row(const settings *at, long item, long query, long wide, float *row) {
    if (query && !at->bias_query && !at->causal) return row; /* as it was for the query before */
    long seen = at->causal ? query + 1 : at->keys;
    const float *bias = at->bias ? at->bias + item * at->bias_item + query * at->bias_query : NULL;
    for (long j = 0; j < seen; j++) row[j] = bias ? bias[j] : 0.0f;
    for (long j = seen; j < wide; j++) row[j] = -INFINITY;
    return row;
}

/* p of one query from its scores s; s becomes dropout(p). Both are zero beyond the last key. */
static inline void softmax_row(float *restrict s, float *restrict p, const float *restrict bias, const int16_t *restrict draws,
                               int16_t level, float kept, long wide) {
    float top = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : top)
    for (long j = 0; j < wide; j++) {
        s[j] += bias[j];
        top = s[j] > top ? s[j] : top;
    }
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < wide; j++) sum += (s[j] = exponential(s[j] - top));
    float one = 1.0f / sum;
    if (draws) {
        for (long j = 0; j < wide; j++) {
            p[j] = s[j] * one;
            s[j] = p[j] * (draws[j] >= level ? kept : 0.0f);
        }
    } else {
        for (long j = 0; j < wide; j++) p[j] = s[j] *= one;
    }
}

static long place(const strides *of, long item, long head) { return item * of->item + head * of->head; }

void attend(const settings *at, const float *q, const float *k, const float *v, float *p, float *o) {
    long wide = padded(at->keys), row = at->heads * at->width;
#pragma omp parallel for if (at->threads > 1) num_threads(at->threads)
    for (long n = 0; n < at->items * at->heads; n++) {
        long b = n / at->heads, h = n % at->heads;
        float turned[MOST * MOST], s[MOST * MOST], row_of_bias[MOST];
        transpose(k + place(&at->k, b, h), at->k.token, at->keys, at->width, turned, wide);
        small_product(q + place(&at->q, b, h), at->q.token, 1, turned, wide, s, wide, at->queries, wide / LANES,
                      at->width, at->scale);
        for (long i = 0; i < at->queries; i++) {
            long query = n * at->queries + i;
            softmax_row(s + i * wide, p + query * wide, bias_row(at, b, i, wide, row_of_bias),
                        at->draws ? at->draws + query * at->keys : NULL, at->level, at->kept, wide);
        }
        small_product(s, wide, 1, v + place(&at->v, b, h), at->v.token, o + b * at->queries * row + h * at->width, row,
                      at->queries, at->width / LANES, at->keys, 1.0f);
    }
}

/* ∂s = p ⊙ (m ⊙ ∂p̃ − Σ ∂o ⊙ o) for one query, m the mask with its factor; `dropped` becomes p̃ = m ⊙ p (Dao et al., 2022) */
static inline void softmax_row_back(float *restrict ds, float *restrict dropped, const float *restrict p, float mean,
                                    const int16_t *restrict draws, int16_t level, float kept, long wide) {
    if (draws) {
        for (long j = 0; j < wide; j++) {
            float m = draws[j] >= level ? kept : 0.0f;
            dropped[j] = p[j] * m;
            ds[j] = p[j] * (ds[j] * m - mean);
        }
    } else {
        for (long j = 0; j < wide; j++) {
            dropped[j] = p[j];
            ds[j] = p[j] * (ds[j] - mean);
        }
    }
}

void attend_back(const settings *at, const float *grad, const float *o, const float *q, const float *k, const float *v,
                 const float *p, float *dq, float *dk, float *dv) {
    long wide = padded(at->keys), row = at->heads * at->width;
#pragma omp parallel for if (at->threads > 1) num_threads(at->threads)
    for (long n = 0; n < at->items * at->heads; n++) {
        long b = n / at->heads, h = n % at->heads, rows = b * at->queries * row + h * at->width, vectors = at->width / LANES;
        float turned[MOST * MOST], ds[MOST * MOST], dropped[MOST * MOST];
        transpose(v + place(&at->v, b, h), at->v.token, at->keys, at->width, turned, wide);
        small_product(grad + rows, row, 1, turned, wide, ds, wide, at->queries, wide / LANES, at->width, 1.0f);
        for (long i = 0; i < at->queries; i++) {
            long query = n * at->queries + i;
            float mean = 0.0f;
#pragma omp simd reduction(+ : mean)
            for (long c = 0; c < at->width; c++) mean += grad[rows + i * row + c] * o[rows + i * row + c];
            softmax_row_back(ds + i * wide, dropped + i * wide, p + query * wide, mean,
                             at->draws ? at->draws + query * at->keys : NULL, at->level, at->kept, wide);
        }
        small_product(ds, wide, 1, k + place(&at->k, b, h), at->k.token, dq + place(&at->dq, b, h),
                      at->dq.token, at->queries, vectors, at->keys, at->scale);
        small_product(ds, 1, wide, q + place(&at->q, b, h), at->q.token, dk + place(&at->dk, b, h),
                      at->dk.token, at->keys, vectors, at->queries, at->scale);
        small_product(dropped, 1, wide, grad + rows, row, dv + place(&at->dv, b, h), at->dv.token, at->keys, vectors,
                      at->queries, 1.0f);
    }
}
