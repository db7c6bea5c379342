/* From 0 at -3 to 1 at 3, and no further. */
static float ramp(float value)
{
    const float sixths = value + 3.0f;
    return sixths < 0.0f ? 0.0f : sixths > 6.0f ? 1.0f : sixths * (1.0f / 6.0f);
}
