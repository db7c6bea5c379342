static float silu_of(float value)
{
    return value * logistic(value);
}

DEFINE_ACTIVATION(silu, silu_of)
