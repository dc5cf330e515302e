/* What happens to everybody: crashes, the end, and the beginning. Included in handoff.pml. */

#ifdef M_SAME_ATTEMPT /* attempts and announced pages name their process, too: after a crash it is another one */
#define MAY_CRASH_P (p_crashes)
#define MAY_CRASH_D (d_crashes)
#else
#define MAY_CRASH_P (BREAKS || p_crashes)
#define MAY_CRASH_D (BREAKS || d_crashes)
#endif

proctype Crashes() {
  do
  :: d_step {
       MAY_CRASH_P ->
       printf("SIM crash-prefill\n");
       if
       :: p_crashes -> p_crashes--
       :: else -> faults--
       fi;
       stepping_p = NONE;
       step_page_p = 0;
       i = 0;
       do
       :: i < PPAGES ->
          p_state[i] = FREE;
          p_fenced[i] = 0;
          p_half0[i] = 0;
          p_half1[i] = 0;
          i++
       :: else -> break
       od;
       i = 0;
       do
       :: i < RUNS ->
          if
          :: open_p[i] || open_sent[i] ->
             EndStream(i, 1);
             open_p[i] = 0;
             open_sent[i] = 0;
             run_p[i] = P_OVER
          :: else
          fi;
          next[i] = 0;
          p_page[AT(i, 0)] = NONE;
          p_page[AT(i, 1)] = NONE;
          if
          :: run_d[i] == D_FETCHING || run_d[i] == D_DRAINING -> closed_peer[i] = 1
          :: else
          fi;
          i++
       :: else -> break
       od
       ;
       skip
     }
  :: d_step {
       MAY_CRASH_D ->
       printf("SIM crash-decode\n");
       if
       :: d_crashes -> d_crashes--
       :: else -> faults--
       fi;
       stepping_d = NONE;
       step_page_d = 0;
       window = 0;
       i = 0;
       do
       :: i < DPAGES ->
          d_state[i] = FREE;
          d_tenure[i] = 0;
          d_fenced[i] = 0;
          d_half0[i] = 0;
          d_half1[i] = 0;
          d_reads[i] = 0;
          d_pins[i] = 0;
          i++
       :: else -> break
       od;
#ifdef M_SECOND_READ
       z_to = DPAGES;
#endif
       who = 0;
       do
       :: who < RUNS ->
          if
          :: run_d[who] != D_IDLE -> run_d[who] = D_OVER
          :: else
          fi;
          open_d[who] = 0;
          cancel[who] = 0;
          closed_peer[who] = 0;
          end_sent[who] = 0;
          k = 0;
          do
          :: k < NP ->
             d_page[AT(who, k)] = NONE;
             pinned[AT(who, k)] = 0;
             covered[AT(who, k)] = 0;
             read[AT(who, k)] = R_NONE;
             ForgetRead(who, k);
             k++
          :: else -> break
          od;
          who++
       :: else -> break
       od;
       who = 0;
       do
       :: who < REQS -> TryAgain(who); who++
       :: else -> break
       od
       ;
       skip
     }
  /* From here on nothing goes wrong any more. */
  :: d_step { faults || p_crashes || d_crashes -> faults = 0; p_crashes = 0; d_crashes = 0; skip }
  od
}

/* When nobody can do anything any more. */
proctype Ending() {
  timeout -> d_step {
    i = 0;
    do
    :: i < REQS -> assert(gateway[i] == G_ANSWERED || gateway[i] == G_ERROR); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < DPAGES -> assert((d_state[i] == FREE || d_state[i] == CACHED) && d_pins[i] == 0 && d_reads[i] == 0); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < PPAGES -> assert(p_state[i] == FREE); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < RUNS ->
       assert(run_d[i] == D_IDLE || run_d[i] == D_OVER);
       assert(run_p[i] == P_IDLE || run_p[i] == P_OVER);
       i++
    :: else -> break
    od;
    assert(window == 0)
  }
}

init {
  byte x;
  atomic {
    for (x : 0 .. RUNS * NP - 1) {
      d_page[x] = NONE;
      p_page[x] = NONE
    }
#ifdef M_PIN_AFTER_LOOKUP
    for (x : 0 .. RUNS - 1) { looked[x] = NONE }
#endif
    if
    :: same_domain = 0
    :: same_domain = 1
    fi;
    for (x : 0 .. REQS - 1) {
      if
      :: pages[x] = 1
      :: pages[x] = 2
      fi
    }
    if
    :: skip
    :: d_state[0] = CACHED; /* earlier requests of both were answered */
       d_half0[0] = IDENTITY(0, 0);
       d_half1[0] = IDENTITY(0, 0);
       if
       :: skip
       :: !same_domain ->
          d_state[1] = CACHED;
          d_half0[1] = IDENTITY(1, 0);
          d_half1[1] = IDENTITY(1, 0)
       fi
    fi;
    printf("SIM sizes %d %d %d %d\n", LIVES, DPAGES, PPAGES, WINDOW);
    printf("SIM requests %d %d %d %d\n", same_domain, pages[0], pages[1], (d_state[0] == CACHED) + (d_state[1] == CACHED));
    for (x : 0 .. REQS - 1) { run Gateway(x) }
    for (x : 0 .. RUNS - 1) {
      run DecodeRun(x);
      run PrefillRun(x);
      run Transfer(x, 0);
      run Transfer(x, 1)
    }
    for (x : 0 .. DPAGES - 1) { run DecodePage(x) }
    for (x : 0 .. PPAGES - 1) { run PrefillPage(x) }
#ifdef M_SECOND_READ
    run FirstRead();
#endif
    run Crashes();
    run Ending()
  }
}
