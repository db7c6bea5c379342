typedef struct {
    int rows, columns, down, right, top, left;
} Window;

/* What lies in a plane of one of a pool's windows. */
static Span span_of(int number, int kernel, int stride, int padding, int side)
{
    const int start = number * stride - padding, stop = start + kernel;
    const Span span = {start < 0 ? 0 : start, stop > side ? side : stop};
    return span;
}
