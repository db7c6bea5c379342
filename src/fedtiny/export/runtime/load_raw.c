/* Measured values, which are normalized. */
static void load_raw(const float *values, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = (*values++ - raw_mean[channel]) * raw_scale[channel];
        }
}
