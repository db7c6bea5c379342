/* Means of windows; `count_padding` says whether the zeros around a plane count. */
static void mean_pool(const Window *window, const Tensor *in, const Tensor *out, int count_padding)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const Span rows = span_of(row, window->rows, window->down, window->top, in->rows);
            float *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column) {
                const Span columns = span_of(column, window->columns, window->right, window->left,
                                             in->columns);
                const int count = count_padding ? window->rows * window->columns
                                                : pixels_in(rows, columns);
                to[column] = sum_of(in, channel, rows, columns) / (float)count;
            }
        }
}
