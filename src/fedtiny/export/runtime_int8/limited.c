/* The least and the largest integer that a step gives. */
typedef struct {
    int least, most;
} Range;

static int8_t limited(Range range, int32_t value)
{
    const int32_t above = value < range.least ? range.least : value;
    return (int8_t)(above > range.most ? range.most : above);
}
