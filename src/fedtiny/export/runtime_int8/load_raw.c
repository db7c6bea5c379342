/* Measured values, in 256ths of a step first. */
static void load_raw(const float *values, const Tensor *out, int zero)
{
    const Range range = {-128, 127};
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column) {
                const float fine = (*values++ - raw_mean[channel]) * raw_scale[channel];
                const float low = fine > -1e6f ? fine : -1e6f, cut = low < 1e6f ? low : 1e6f;
                to[column] = limited(range, (((int32_t)cut + 128) >> 8) + zero);
            }
        }
}
