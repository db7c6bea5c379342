static void load_values(const float *values, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row, values += out->columns)
            memcpy(row_of(out, channel, row), values, (size_t)out->columns * sizeof(float));
}
