/* What a step gives is at least this: nothing is cut off, or what is negative. */
#define LINEAR (-INFINITY)
#define RELU 0.0f

static float at_least(float floor, float value)
{
    return value < floor ? floor : value;
}
