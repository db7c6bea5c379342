static void multiply(const Tensor *first, const Tensor *second, const Tensor *out, int zero,
                     int other_zero, int32_t multiplier, int64_t start)
{
    const Range range = {-128, 127};
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const int8_t *a = row_of(first, channel, row), *b = row_of(second, channel, row);
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column) {
                const int64_t product = (a[column] - zero) * (b[column] - other_zero);
                to[column] = limited(range, scaled(product * multiplier + start));
            }
        }
}
