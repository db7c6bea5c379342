/* A function of single values, by what it gives for each of the 256 integers. */
static void look_up(const int8_t *table, const Tensor *in, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const int8_t *from = row_of(in, channel, row);
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = table[from[column] + 128];
        }
}
