/* What a step gives lies between these: nothing is cut off, what is negative, or what is above 6 as
   well. */
typedef struct {
    float least, most;
} Range;

#define LINEAR ((Range){-INFINITY, INFINITY})
#define RELU ((Range){0.0f, INFINITY})
#define RELU6 ((Range){0.0f, 6.0f})

static float limited(Range range, float value)
{
    const float above = value < range.least ? range.least : value;
    return above > range.most ? range.most : above;
}
