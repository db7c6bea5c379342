/* Part `number` of an axis that is cut into `parts`; neighbours may overlap. */
static Span cut_of(int number, int parts, int side)
{
    const Span span = {number * side / parts, ((number + 1) * side + parts - 1) / parts};
    return span;
}

static void adaptive_pool(const Means *means, const Tensor *in, const Tensor *out)
{
    for (int channel = 0; channel < out->channels; ++channel)
        for (int row = 0; row < out->rows; ++row) {
            const Span rows = cut_of(row, out->rows, in->rows);
            int8_t *to = row_of(out, channel, row);
            for (int column = 0; column < out->columns; ++column) {
                const Span columns = cut_of(column, out->columns, in->columns);
                to[column] = mean_of(means, in, channel, rows, columns, pixels_in(rows, columns));
            }
        }
}
