static void flatten(const Tensor *in, float *to)
{
    for (int channel = 0; channel < in->channels; ++channel)
        for (int row = 0; row < in->rows; ++row, to += in->columns)
            memcpy(to, row_of(in, channel, row), (size_t)in->columns * sizeof(float));
}
