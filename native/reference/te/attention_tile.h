/*
 * The tiles that attention is computed in: kTile queries by kTile keys in float, rows of kTile columns.
 *
 * Panels hold rows of q, k, v or their gradients as float; widths are rounded up to kLane and the rest is zero, so that
 * no loop has a remainder.
 */
#ifndef CHAGRES_REFERENCE_ATTENTION_TILE_H
#define CHAGRES_REFERENCE_ATTENTION_TILE_H

#include "te/attention.h"

namespace chagres::reference {

constexpr int64_t kTile = 48;
constexpr int64_t kLane = 16; /* columns of one register tile */
constexpr int64_t kRegisterRows = 6;

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/* Columns of a tile that hold `keys` keys: those that products with a tile read, whether along its rows or its columns. */
constexpr int64_t tile_columns(int64_t keys) { return round_up(round_up(keys, kRegisterRows), kLane); }

/* C[m, n] += A[m, k] B[k, n]; element (i, l) of A is a[i * a_row + l * a_column], B and C are row-major. m is rounded
 * up to kRegisterRows and n to kLane: A, B and C must have these rows and columns. */
void add_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column, const float *b,
                 int64_t ldb, float *c, int64_t ldc);

/* The same with C = A B: what C holds is not read. */
void set_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column, const float *b,
                 int64_t ldb, float *c, int64_t ldc);

/* Rows first .. first + rows - 1 of one head as float [round_up(rows, kRegisterRows), width], zero where there is no
 * element. */
void load_panel(const AttentionTensor &tensor, int64_t sequence, int64_t head, int64_t first, int64_t rows,
                int64_t columns, int64_t width, float *panel);

/* The transpose of a panel [rows, width], as [columns, kTile]; columns past `rows` are zero. */
void transpose_panel(const float *panel, int64_t rows, int64_t columns, int64_t width, float *transposed);

/* Rounds panel rows to the tensor's dtype. */
void store_panel(const float *panel, int64_t rows, int64_t columns, int64_t width, const AttentionTensor &tensor,
                 int64_t sequence, int64_t head, int64_t first);

/* Zero rows first .. last - 1 of one head. */
void store_zeros(const AttentionTensor &tensor, int64_t sequence, int64_t head, int64_t first, int64_t last,
                 int64_t columns);

/* Whether all of these rows see all of these keys, and their scores are changed by nothing but a finite scale above 0: then
 * no row needs a mask, and the largest score is the scale times the largest product. */
bool is_plain_tile(const AttentionProblem &problem, const AttentionLength &length, int64_t row, int64_t rows, int64_t key,
                   int64_t columns);

/* One row of scores: row[j] *= scale inside first .. last - 1, -infinity outside. */
void mask_row(float *row, int64_t columns, float scale, int64_t first, int64_t last);

/* One row of scores of keys first_key .. : changes those from first to last - 1, as mask_row counts; derivatives, of kTile,
 * may be null. */
void change_row(const AttentionScores &scores, const AttentionLength &length, int64_t sequence, int64_t head, int64_t query,
                int64_t first_key, int64_t first, int64_t last, float *row, float *derivatives);

/* For each of `count` rows of a tile: largest[i] becomes the largest of itself and scale times the row's values; NaN values
 * are passed over (exponentials keep them). */
void largest_of_rows(const float *rows, int64_t count, int64_t columns, float scale, float *largest);

/* For each of `count` rows of a tile: its values become exp(scale * value - shifts[i]), and sums[i] their sum; sums may be
 * null. */
void exponentiate_rows(float *rows, int64_t count, int64_t columns, float scale, const float *shifts, float *sums);

/* For each of `count` rows of a tile: its values become p = exp(scale * value - shifts[i]), and the gradients, which are
 * those of p, p * (gradient - deltas[i]). */
void differentiate_rows(float *rows, float *gradients, int64_t count, int64_t columns, float scale, const float *shifts,
                        const float *deltas);

/* Dropout factors m_ij of the keys key .. key + kTile - 1 of row `row` of a sequence and one of the problem's heads. */
void dropout_row(const AttentionProblem &problem, int64_t sequence, int64_t head, int64_t row, int64_t key,
                 float *factors);

/* values[i] *= factors[i]. */
void multiply_run(float *values, const float *factors, int64_t count);

void scale_run(float *values, float factor, int64_t count);

/* gradient[j] = probability[j] * (gradient[j] - delta): the gradient of a row of scores from that of its probabilities. */
void score_gradient_row(float *gradient, const float *probability, float delta, int64_t columns);

float dot(const float *a, const float *b, int64_t count);

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_ATTENTION_TILE_H */
