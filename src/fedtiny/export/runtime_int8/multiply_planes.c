/* Each plane with a number of its own. */
static void multiply_planes(const Tensor *in, const Tensor *factors, const Tensor *out, int zero,
                            int other_zero, int32_t multiplier, int64_t start)
{
    const Range range = {-128, 127};
    for (int channel = 0; channel < out->channels; ++channel) {
        const int32_t factor = *row_of(factors, channel, 0) - other_zero;
        for (int row = 0; row < out->rows; ++row) {
            const int8_t *from = row_of(in, channel, row);
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column) {
                const int64_t product = (from[column] - zero) * factor;
                to[column] = limited(range, scaled(product * multiplier + start));
            }
        }
    }
}
