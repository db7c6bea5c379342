/* The same values, in their order, in another shape. */
static void reshape(const Tensor *in, const Tensor *out)
{
    int place = 0;
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row)
            for (int column = 0; column < out->columns; ++column, ++place) {
                const int line = place / in->columns;
                row_of(out, channel, row)[column] =
                    row_of(in, line / in->rows, line % in->rows)[place % in->columns];
            }
}
