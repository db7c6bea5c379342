#if !defined(__ARM_FEATURE_DSP) || !defined(__GNUC__)
#error "written for a core with the DSP extension and gcc or clang; export with --target cortex-m"
#endif
