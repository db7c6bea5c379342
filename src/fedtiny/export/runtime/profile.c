#ifdef MODEL_PROFILE
const char *const model_step_names[MODEL_STEPS] = {
$step_names
};

uint32_t model_profile[MODEL_STEPS];

static uint32_t step_start;

static void start_profile(void)
{
    memset(model_profile, 0, sizeof model_profile);
    step_start = model_ticks();
}

static void end_step(int step)
{
    model_profile[step] += model_ticks() - step_start;
    step_start = model_ticks();
}

#define START_PROFILE() start_profile()
#define END_STEP(step) end_step(step)
#else
#define START_PROFILE() ((void)0)
#define END_STEP(step) ((void)0)
#endif
