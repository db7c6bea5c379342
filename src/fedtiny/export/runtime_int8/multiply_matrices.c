/* A product of matrices (rows, columns) for each channel. */
static void multiply_matrices(const Tensor *first, const Tensor *second, const Tensor *out,
                              int zero, int other_zero, int32_t multiplier, int64_t start)
{
    const Range range = {-128, 127};
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const int8_t *a = row_of(first, channel, row);
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column) {
                const int8_t *b = row_of(second, channel, 0) + column;
                int32_t sum = 0;
                for (int inner = 0; inner < first->columns; ++inner, b += second->pitch)
                    sum += (a[inner] - zero) * (*b - other_zero);
                to[column] = limited(range, scaled((int64_t)sum * multiplier + start));
            }
        }
}
