/* How many pixels of a window count, those of the padding with or without. */
static int counted(const Window *window, const Tensor *in, int row, int column, int padding)
{
    const int top = padding ? 0 : window->top, more_rows = padding ? 2 * window->top : 0;
    const int left = padding ? 0 : window->left, more_columns = padding ? 2 * window->left : 0;
    return pixels_in(
        span_of(row, window->rows, window->down, top, in->rows + more_rows),
        span_of(column, window->columns, window->right, left, in->columns + more_columns));
}

/* Means of windows; `count_padding` says whether the zeros around a plane count. */
static void mean_pool(const Window *window, const Means *means, const Tensor *in,
                      const Tensor *out, int count_padding)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const Span rows = span_of(row, window->rows, window->down, window->top, in->rows);
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column) {
                const Span columns = span_of(column, window->columns, window->right, window->left,
                                             in->columns);
                const int count = counted(window, in, row, column, count_padding);
                to[column] = mean_of(means, in, channel, rows, columns, count);
            }
        }
}
