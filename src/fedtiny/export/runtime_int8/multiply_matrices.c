/* A product of matrices (rows, columns) for each channel, four columns at a time: what is read behind
   a row is not stored. */
static void multiply_matrices(const Tensor *first, const Tensor *second, const Tensor *out,
                              int zero, int other_zero, int32_t multiplier, int64_t start)
{
    const Range range = {-128, 127};
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const int8_t *a = row_of(first, channel, row);
            int8_t *to = row_of(out, channel, row);
            int32_t factors = 0;
            for (int inner = 0; inner < first->columns; ++inner)
                factors += a[inner] - zero;
            for (int column = 0; column < out->columns; column += 4) {
                const int8_t *b = row_of(second, channel, 0) + column;
                int32_t sums_of_four[4] = {0, 0, 0, 0};
                for (int inner = 0; inner < first->columns; ++inner, b += second->pitch) {
                    const int32_t factor = a[inner] - zero;
                    sums_of_four[0] += factor * b[0];
                    sums_of_four[1] += factor * b[1];
                    sums_of_four[2] += factor * b[2];
                    sums_of_four[3] += factor * b[3];
                }
                for (int i = 0; i < 4 && column + i < out->columns; ++i) {
                    const int64_t sum = sums_of_four[i] - factors * other_zero;
                    to[column + i] = limited(range, scaled(sum * multiplier + start));
                }
            }
        }
}
