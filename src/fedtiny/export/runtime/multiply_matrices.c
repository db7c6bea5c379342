/* A product of matrices (rows, columns) for each channel. */
static void multiply_matrices(const Tensor *first, const Tensor *second, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            float *to = row_of(out, channel, row);
            memset(to, 0, (size_t)out->columns * sizeof(float));
            for (int inner = 0; inner < first->columns; ++inner) {
                const float factor = row_of(first, channel, row)[inner];
                const float *from = row_of(second, channel, inner);
                for (int column = 0; column < out->columns; ++column)
                    to[column] += factor * from[column];
            }
        }
}
