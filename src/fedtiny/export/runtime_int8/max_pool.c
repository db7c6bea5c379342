static int8_t largest(const Tensor *in, int channel, Span rows, Span columns)
{
    int8_t found = -128;
    for (int row = rows.begin; row < rows.end; ++row)
        for (int column = columns.begin; column < columns.end; ++column) {
            const int8_t pixel = row_of(in, channel, row)[column];
            found = pixel < found ? found : pixel;
        }
    return found;
}

static void max_pool(const Window *window, const Tensor *in, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const Span rows = span_of(row, window->rows, window->down, window->top, in->rows);
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column)
                to[column] = largest(in, channel, rows,
                                     span_of(column, window->columns, window->right, window->left,
                                             in->columns));
        }
}
