/* Who acts at prefill and in the pools, and when. Included in handoff.pml. */

proctype PrefillRun(byte x) {
  do
  :: d_step {
       open_sent[x] ->
       printf("SIM open %d\n", x);
       open_sent[x] = 0;
       if
       :: open_d[x] -> open_p[x] = 1; run_p[x] = P_QUEUED
       :: else -> run_p[x] = P_OVER
       fi
       ;
       skip
     }
  /* PrefillHandoff::OnRefused. */
  :: d_step {
       faults && run_p[x] == P_QUEUED && open_p[x] ->
       printf("SIM refuse %d\n", x);
       faults--;
       rejected[x] = 1;
#ifdef M_REJECT_GOES_ON
       run_p[x] = P_QUEUED
#else
       run_p[x] = P_OVER;
       open_p[x] = 0;
       EndStream(x, 1)
#endif
       ;
       skip
     }
  /* PrefillHandoff::OnReserved: for the whole prompt, or not at all. */
  :: d_step {
       run_p[x] == P_QUEUED && open_p[x] && P_FREE >= P_NEEDS(x) ->
       printf("SIM reserve %d\n", x);
       next[x] = covered[AT(x, 0)]; /* first_page of the request */
       ReserveAtPrefill(x, next[x], next[x] + P_NEEDS(x));
       run_p[x] = P_RUNNING
       ;
       skip
     }
#ifdef M_PAGE_BY_PAGE
  :: d_step {
       run_p[x] == P_RUNNING && open_p[x] && pages[REQ(x)] == 2 && p_page[AT(x, 1)] == NONE && P_FREE > 0 ->
       printf("SIM reserve %d\n", x);
       ReserveAtPrefill(x, 1, 2)
       ;
       skip
     }
#endif
  /* A step: its first layers and its last ones. */
  :: d_step {
       run_p[x] == P_RUNNING && stepping_p == NONE && HAS_ROOM(x) ->
       printf("SIM begin-prefill %d\n", x);
       stepping_p = x;
       step_page_p = p_page[AT(x, next[x])];
       p_half0[step_page_p] = FED(x, next[x]);
#ifdef M_SEALED_TOO_EARLY
       Announce(x, next[x], step_page_p, NAMED(x, next[x]));
#endif
       run_p[x] = P_STEPPING
       ;
       skip
     }
  /* PrefillHandoff::OnSealed. */
  :: d_step {
       stepping_p == x ->
       printf("SIM prefill %d %d\n", x, next[x]);
       stepping_p = NONE;
       i = 0;
       do
       :: i < PPAGES -> p_fenced[i] = 0; i++
       :: else -> break
       od;
       p_half1[step_page_p] = FED(x, next[x]);
       if
       :: run_p[x] == P_STEPPING ->
#ifndef M_SEALED_TOO_EARLY
          Announce(x, next[x], step_page_p, NAMED(x, next[x]));
#endif
          next[x] = next[x] + 1;
          run_p[x] = (next[x] == pages[REQ(x)] -> P_HOLDING : P_RUNNING)
       :: else -> next[x] = 0
       fi;
       step_page_p = 0
       ;
       skip
     }
  /* PrefillHandoff::OnStreamClosed: decode has closed it. */
  :: d_step { open_p[x] && !open_d[x] && !open_sent[x] -> printf("SIM closed %d\n", x); ReleaseAtPrefill(x); skip }
#ifdef M_PIN_DROPPED
  :: d_step { run_p[x] == P_HOLDING -> ReleaseAtPrefill(x); skip }
#endif
  /* It breaks for both. */
  :: d_step { BREAKS && open_p[x] -> printf("SIM broken %d\n", x); faults--; EndStream(x, 1); ReleaseAtPrefill(x); skip }
  /* A peer with bugs: it ends the stream as if all were well, or announces a sealed page of another prompt. */
  :: d_step { BREAKS && open_p[x] -> printf("SIM ends-well %d\n", x); faults--; EndStream(x, 2); ReleaseAtPrefill(x); skip }
  :: d_step {
       BREAKS && open_p[x] && run_p[x] >= P_RUNNING && sent[AT(x, 0)] == A_NONE ->
       faults--;
       i = 0;
       do
       :: i < PPAGES ->
          if
          :: p_half0[i] != 0 && p_half0[i] == p_half1[i] && p_half0[i] != IDENTITY(REQ(x), 0) ->
             printf("SIM announces-other %d %d\n", x, p_half0[i]);
             Announce(x, 0, i, p_half0[i])
          :: else
          fi;
          i++
       :: else -> break
       od
       ;
       skip
     }
  od
}

/* Pool::Reclaim: only when no step and no read can touch a page any more, and zeroed (I7). */
proctype DecodePage(byte p) {
  do
  :: d_step {
#ifdef M_NO_COUNT
       d_state[p] == RETIRED && !d_fenced[p] ->
#else
#ifdef M_NO_FENCE_AT_DECODE
       d_state[p] == RETIRED && d_reads[p] == 0 ->
#else
       d_state[p] == RETIRED && d_reads[p] == 0 && !d_fenced[p] ->
#endif
#endif
       printf("SIM free-decode\n");
       d_state[p] = FREE;
       d_fenced[p] = 0;
       d_half0[p] = 0;
       d_half1[p] = 0
       ;
       skip
     }
  od
}

proctype PrefillPage(byte p) {
  do
  :: d_step {
#ifdef M_NO_FENCE_AT_PREFILL
       p_state[p] == RETIRED ->
#else
       p_state[p] == RETIRED && !p_fenced[p] ->
#endif
       printf("SIM free-prefill\n");
       p_state[p] = FREE;
       p_fenced[p] = 0;
       p_half0[p] = 0;
       p_half1[p] = 0
       ;
       skip
     }
  od
}

#ifdef M_SECOND_READ
proctype FirstRead() {
  do
  :: d_step { z_to != NONE && z_to < DPAGES -> printf("SIM late-half\n"); d_half1[z_to] = p_half1[z_from]; z_to = DPAGES; skip }
  od
}
#endif
