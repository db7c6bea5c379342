/* All channels of a place together. */
static void layer_norm(const Norm *norm, const Tensor *in, const Tensor *out)
{
    for (int row = 0; row < in->rows; ++row)
        for (int column = 0; column < in->columns; ++column) {
            const int8_t *from = row_of(in, 0, row) + column;
            int8_t *to = row_of(out, 0, row) + column;
            Moments moments = {0, 0, 0, 0};
            for (int channel = 0; channel < in->channels; ++channel)
                count_value(&moments, from[channel * in->plane]);
            finish_moments(norm, &moments);
            for (int channel = 0; channel < in->channels; ++channel)
                to[channel * out->plane] =
                    normed(norm, &moments, channel, from[channel * in->plane]);
        }
}
