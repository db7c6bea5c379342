static void group_norm(const Norm *norm, const Tensor *in, const Tensor *out, int groups)
{
    const int channels = in->channels / groups;
    for (int first = 0; first < in->channels; first += channels) {
        Moments moments = {0, 0, 0, 0};
        for (int channel = first; channel < first + channels; ++channel)
            for (int row = 0; row < in->rows; ++row)
                for (int column = 0; column < in->columns; ++column)
                    count_value(&moments, row_of(in, channel, row)[column]);
        finish_moments(norm, &moments);
        for (int channel = first; channel < first + channels; ++channel)
            for (int row = 0; row < in->rows; ++row) {
                const int8_t *from = row_of(in, channel, row);
                int8_t *to = row_of(out, channel, row);
                for (int column = 0; column < in->columns; ++column)
                    to[column] = normed(norm, &moments, channel, from[column]);
            }
    }
}
