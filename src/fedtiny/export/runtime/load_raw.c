/* Measured values, which are normalised; a byte of an image would be a 255th. */
static void load_raw(const float *values, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = *values++ * (255.0f * pixel_scale[channel]) + pixel_shift[channel];
        }
}
