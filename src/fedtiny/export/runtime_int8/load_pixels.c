/* The image, a channel after the other, by the integers of each channel's bytes. */
static void load_pixels(const uint8_t *pixels, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = pixel_table[256 * channel + *pixels++];
        }
}
