// `cofferdam demo-leak`: the incident of 2026 with the real servers, and what each protection alone does about it.
//
// Only builds with fault points have it (COFFERDAM_FAULTS): without their switches nothing leaks that could be shown.
#ifndef COFFERDAM_CLI_DEMO_LEAK_H_
#define COFFERDAM_CLI_DEMO_LEAK_H_

namespace cofferdam::cli {

// Starts `cofferdam up` once for every line that it prints. Returns 0 when one tenant got another's code with all protections
// off and got it with none of them alone on; else 1, and the last lines say why.
int RunDemoLeak();

}  // namespace cofferdam::cli

#endif  // COFFERDAM_CLI_DEMO_LEAK_H_
