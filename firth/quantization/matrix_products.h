/* Products of a matrix of weights with the vectors of a few sequences, for one thread or all.

   Each weight is read once for all sequences, in the order in which memory is read fastest. Sums
   keep their order: a sequence's result does not depend on the others in the batch. */

#include <omp.h>
#include "vectors.h"

enum { CHUNK = 1 << 18 };            /* bytes of a matrix per chunk */
enum { VECTORS = 4 };                /* sequences that share loaded weights */
enum { ROWS = LANES == 16 ? 4 : 1 }; /* whose products with these are summed in registers */
/* Of a transposed matrix: sequences that share loaded weights, the columns whose sums for these
   stay in registers, and columns of a chunk for fewer sequences. */
enum { TILE = LANES == 16 ? 4 : 2, COLUMNS = 4 * LANES, WIDE = 768 };

typedef struct {
    const float *weight;    /* (outputs, inputs), or NULL if int8: */
    const int8_t *numbers;  /* the same as int8, */
    const float *scale;     /* one scale per row */
    const float *bias;      /* or NULL */
    int64_t outputs, inputs, transposed; /* transposed: the weight is (inputs, outputs) */
} Matrix;

/* Dot products of `rows` matrix rows with `vectors` vectors: sums[r][v]. Weights that were loaded
   serve all vectors, and vectors all rows. Each dot product adds in the same order whatever the
   numbers of rows and vectors are, so a sequence's logits do not depend on the others in the batch.
   Meanwhile `fetched` rows from `ahead` are fetched from memory. All these numbers are constants:
   with loops of unknown length, memory is read more slowly. */
#define DOT(name, type, load_row)                                                                  \
    static inline __attribute__((always_inline)) void name(                                        \
        const type *w, const float *x, int64_t size, int rows, int vectors,                        \
        const type *ahead, int fetched, float sums[ROWS][VECTORS]) {                               \
        Sixteen total[ROWS][VECTORS];                                                              \
        int64_t i = 0;                                                                             \
        for (int r = 0; r < rows; r++)                                                             \
            for (int v = 0; v < vectors; v++) total[r][v] = (Sixteen){{{0}}};                      \
        for (; i + 16 <= size; i += 16) {                                                          \
            Sixteen vector[VECTORS];                                                               \
            for (int k = 0; k < 16 * fetched; k += LINE / (int)sizeof(type))                       \
                __builtin_prefetch(ahead + i * fetched + k);                                       \
            for (int v = 0; v < vectors; v++) vector[v] = load(x + v * size + i);                  \
            for (int r = 0; r < rows; r++) {                                                       \
                Sixteen row = load_row(w + r * size + i);                                          \
                for (int v = 0; v < vectors; v++) multiply_add(&total[r][v], row, vector[v]);      \
            }                                                                                      \
        }                                                                                          \
        for (int r = 0; r < rows; r++)                                                             \
            for (int v = 0; v < vectors; v++) sums[r][v] = sum_of(total[r][v]);                    \
        if (i < size)                                                                              \
            for (int r = 0; r < rows; r++)                                                         \
                for (int v = 0; v < vectors; v++)                                                  \
                    for (int64_t j = i; j < size; j++)                                             \
                        sums[r][v] += (float)w[r * size + j] * x[v * size + j];                    \
    }

DOT(dot_rows, float, load)
DOT(dot_rows8, int8_t, load8)

/* Outputs o to o + rows of a matrix product for some sequences: x (vectors, inputs). Of the rows
   after them, `fetched` are fetched from memory, from number `first` on. */
static inline __attribute__((always_inline)) void multiply_block(
    const Matrix *m, const float *x, float *y, int64_t o, int rows, int vectors,
    int64_t first, int fetched) {
    float sums[ROWS][VECTORS];
    int64_t size = m->inputs, at = o * size, ahead = at + (rows + first) * size;
    if (m->weight)
        dot_rows(m->weight + at, x, size, rows, vectors, m->weight + ahead, fetched, sums);
    else dot_rows8(m->numbers + at, x, size, rows, vectors, m->numbers + ahead, fetched, sums);
    for (int r = 0; r < rows; r++) {
        float scale = m->weight ? 1.0f : m->scale[o + r], bias = m->bias ? m->bias[o + r] : 0.0f;
        for (int v = 0; v < vectors; v++) y[v * m->outputs + o + r] = sums[r][v] * scale + bias;
    }
}

/* Outputs o to end of a matrix product for all sequences: x (B, inputs) -> y (B, outputs). Each
   block of sequences fetches a part of the next rows. */
static void multiply_rows(const Matrix *m, const float *x, int64_t sequences, float *y, int64_t o,
                          int64_t end) {
    int64_t size = m->inputs, outputs = m->outputs;
    for (; o + ROWS <= end; o += ROWS) {
        if (sequences == 1) multiply_block(m, x, y, o, ROWS, 1, 0, ROWS);
        else if (sequences == 2) multiply_block(m, x, y, o, ROWS, 2, 0, ROWS);
        else if (sequences == 3) multiply_block(m, x, y, o, ROWS, 3, 0, ROWS);
        else if (sequences == 4) multiply_block(m, x, y, o, ROWS, 4, 0, ROWS);
        else
            for (int64_t b = 0; b < sequences; b += VECTORS) {
                int64_t count = sequences - b, first = b / VECTORS;
                const float *from = x + b * size;
                float *to = y + b * outputs;
                if (count == 1) multiply_block(m, from, to, o, ROWS, 1, first, 1);
                else if (count == 2) multiply_block(m, from, to, o, ROWS, 2, first, 1);
                else if (count == 3) multiply_block(m, from, to, o, ROWS, 3, first, 1);
                else multiply_block(m, from, to, o, ROWS, 4, first, 1);
            }
    }
    for (; o < end; o++)
        for (int64_t b = 0; b < sequences; b++)
            multiply_block(m, x + b * size, y + b * outputs, o, 1, 1, 0, 0);
}

/* Outputs o to o + COLUMNS of a transposed matrix (inputs, outputs) for TILE sequences: sums stay
   in registers. */
static void multiply_tile(const Matrix *m, const float *x, float *y, int64_t o) {
    enum { REGISTERS = COLUMNS / LANES };
    int64_t stride = m->outputs;
    const float *row = m->weight + o;
    Vector sums[TILE][REGISTERS] = {{{0}}};
    for (int64_t i = 0; i < m->inputs; i++, row += stride)
        for (int j = 0; j < REGISTERS; j++) {
            if (j % PARTS == 0) __builtin_prefetch(row + EARLY * stride + LANES * j);
            Vector weights = load_part(row + LANES * j);
            for (int v = 0; v < TILE; v++) sums[v][j] += weights * x[v * m->inputs + i];
        }
    for (int v = 0; v < TILE; v++) memcpy(y + v * stride + o, sums[v], sizeof sums[v]);
}

/* Add the products of inputs i to i + rows with outputs o to end of a transposed matrix, for one
   sequence. */
static inline __attribute__((always_inline)) void add_products(
    const Matrix *m, const float *x, float *y, int64_t o, int64_t end, int64_t i, int rows) {
    const float *w = m->weight + i * m->outputs;
    int64_t stride = m->outputs, j = o;
    float factors[4]; /* copied, as y could be part of x for all the compiler knows */
    for (int r = 0; r < rows; r++) factors[r] = x[i + r];
    for (; j + LANES <= end; j += LANES) {
        Vector sum = load_part(y + j);
        for (int r = 0; r < rows; r++) sum += load_part(w + r * stride + j) * factors[r];
        memcpy(y + j, &sum, sizeof sum);
    }
    for (; j < end; j++)
        for (int r = 0; r < rows; r++) y[j] += w[r * stride + j] * factors[r];
}

/* Outputs o to end of a transposed matrix for all sequences. For one sequence, four rows at a time
   are read from beginning to end, which is how memory is read fastest. */
static void multiply_columns(const Matrix *m, const float *x, int64_t sequences, float *y,
                             int64_t o, int64_t end) {
    int64_t b = 0, inputs = m->inputs, outputs = m->outputs;
    for (; b + TILE <= sequences && (end - o) % COLUMNS == 0; b += TILE)
        for (int64_t j = o; j < end; j += COLUMNS)
            multiply_tile(m, x + b * inputs, y + b * outputs, j);
    for (; b < sequences; b++) {
        const float *from = x + b * inputs;
        float *to = y + b * outputs;
        int64_t i = 0;
        memset(to + o, 0, (end - o) * sizeof *to);
        for (; i + 4 <= inputs; i += 4) add_products(m, from, to, o, end, i, 4);
        for (; i < inputs; i++) add_products(m, from, to, o, end, i, 1);
    }
    for (b = 0; m->bias && b < sequences; b++)
        for (int64_t j = o; j < end; j++) y[b * outputs + j] += m->bias[j];
}

/* Outputs per chunk of a thread: about as many for each thread, in chunks that are read fast. */
static int64_t chunk_size(const Matrix *m, int64_t sequences) {
    int64_t bytes = m->inputs * (m->weight ? sizeof(float) : sizeof(int8_t));
    int64_t most = CHUNK / bytes + 1;
    if (m->transposed) most = sequences < TILE ? WIDE : COLUMNS;
    int64_t each = most * omp_get_num_threads(), step = m->transposed ? COLUMNS : 16;
    int64_t chunks = (m->outputs + each - 1) / each * omp_get_num_threads();
    return ((m->outputs + chunks - 1) / chunks + step - 1) / step * step;
}

/* The product, computed by all threads; ends with a barrier. */
static void multiply(const Matrix *m, const float *x, int64_t sequences, float *y) {
    int64_t size = chunk_size(m, sequences);
#pragma omp for schedule(dynamic)
    for (int64_t o = 0; o < m->outputs; o += size) {
        int64_t end = o + size < m->outputs ? o + size : m->outputs;
        if (m->transposed) multiply_columns(m, x, sequences, y, o, end);
        else multiply_rows(m, x, sequences, y, o, end);
    }
}
