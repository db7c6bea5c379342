static int pixels_in(Span rows, Span columns)
{
    return (rows.end - rows.begin) * (columns.end - columns.begin);
}

/* The zero points of what a pool reads and gives, and the ratio of their scales times 2^24. */
typedef struct {
    int read, given;
    int32_t ratio;
} Means;

/* The mean of a window, of which `count` pixels count; a half is rounded up. */
static int8_t mean_of(const Means *means, const Tensor *in, int channel, Span rows, Span columns,
                      int count)
{
    const Range range = {-128, 127};
    const int64_t divisor = (int64_t)count * (1 << 24);
    int32_t sum = -means->read * pixels_in(rows, columns);
    int64_t number;
    for (int row = rows.begin; row < rows.end; ++row)
        for (int column = columns.begin; column < columns.end; ++column)
            sum += row_of(in, channel, row)[column];
    number = (int64_t)sum * means->ratio + (means->given + 128) * divisor + divisor / 2;
    if (number < 0)
        return -128;
    number /= divisor;
    return limited(range, number > 255 ? 127 : (int32_t)number - 128);
}
