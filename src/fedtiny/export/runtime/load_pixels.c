/* The image, a channel after the other, as it comes or normalized. */
static void load_pixels(const uint8_t *pixels, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = (float)*pixels++ * pixel_scale[channel] + pixel_shift[channel];
        }
}
