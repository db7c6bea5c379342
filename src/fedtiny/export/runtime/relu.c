/* What a step gives is at least this: nothing is cut off, or what is negative. */
typedef float Range;

#define LINEAR (-INFINITY)
#define RELU 0.0f

static float limited(Range range, float value)
{
    return value < range ? range : value;
}
