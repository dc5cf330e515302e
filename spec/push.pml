/*
 * The design that was not taken: prefill writes a prompt's page into decode's memory.
 *
 * A write that was posted lands when the network likes, in two halves, whatever has become of the request, of its page, or of the
 * process that posted it. So decode needs prefill's word before it may use a page again, and after a crash there is nobody to
 * give it: the page is lost, or it is not safe. spec/check shows both.
 */
#ifndef REQS
#define REQS 2
#endif
#ifndef LIVES
#define LIVES 2
#endif
#define RUNS (REQS * LIVES)
#define DPAGES 2
#define NONE 15
#define REQ(run) ((run) / LIVES)

#define D_IDLE 0
#define D_WAITING 1 /* for the page, or for room */
#define D_ASKED 2
#define D_ABORTING 3
#define D_READY 4
#define D_OVER 5
#define FREE 0
#define HELD 1
#define LOST 2
#define W_NONE 0
#define W_ASKED 1
#define W_POSTED 2
#define W_HALF 3
#define W_LANDED 4
#define W_REFUSED 5

bit quiet;
byte run_d[RUNS], d_page[RUNS];
byte state[DPAGES], tenure[DPAGES], half0[DPAGES], half1[DPAGES];
/* The write that prefill was asked for: where it goes was decided when it was asked. */
byte write[RUNS], write_to[RUNS];
bit done_sent[RUNS], abort_sent[RUNS], ack_sent[RUNS], crashed[RUNS];
bit answered[REQS];
byte timeouts = 1, crashes =
#ifdef B_CRASH
    1
#else
    0
#endif
    ;
hidden byte i;

inline Reserve(x) {
  i = 0;
  do
  :: state[i] != FREE -> i++
  :: else -> break
  od;
  assert(half0[i] == 0 && half1[i] == 0);
  state[i] = HELD;
  tenure[i] = x + 1;
  d_page[x] = i
}

inline Free(x) {
  state[d_page[x]] = FREE;
  tenure[d_page[x]] = 0;
  half0[d_page[x]] = 0;
  half1[d_page[x]] = 0;
  d_page[x] = NONE;
  run_d[x] = D_OVER
}

inline Retry(x) {
  if
  :: x % LIVES + 1 < LIVES -> run_d[x + 1] = D_WAITING
  :: else
  fi
}

proctype Decode(byte x) {
  do
  :: d_step {
       run_d[x] == D_WAITING && (state[0] == FREE || state[1] == FREE) ->
       Reserve(x);
       run_d[x] = D_ASKED;
       write[x] = W_ASKED;
       write_to[x] = d_page[x]
     }
#ifdef M_SAME_ROOM
  /* The retry has the name of the attempt before it, whose late message counts. */
  :: d_step { run_d[x] == D_ASKED && x % LIVES > 0 && done_sent[x - 1] -> done_sent[x - 1] = 0; run_d[x] = D_READY }
#endif
  :: d_step { run_d[x] == D_ASKED && done_sent[x] -> done_sent[x] = 0; run_d[x] = D_READY }
  :: d_step {
       !quiet && timeouts && run_d[x] == D_ASKED ->
       timeouts--;
#ifdef M_FREE_AT_TIMEOUT
       Free(x);
       Retry(x)
#else
       run_d[x] = D_ABORTING;
       abort_sent[x] = 1
#endif
     }
  :: d_step { run_d[x] == D_ABORTING && (ack_sent[x] || done_sent[x]) -> Free(x); Retry(x) }
  :: d_step {
       (run_d[x] == D_ASKED || run_d[x] == D_ABORTING) && crashed[x] && !done_sent[x] ->
#ifdef M_FREE_AT_CRASH
       Free(x);
#else
       /* Nobody can say whether something is still on its way. */
       state[d_page[x]] = LOST;
       d_page[x] = NONE;
       run_d[x] = D_OVER;
#endif
       Retry(x)
     }
  :: d_step {
       run_d[x] == D_READY ->
       assert(half0[d_page[x]] == REQ(x) + 1);
       assert(half1[d_page[x]] == REQ(x) + 1);
       assert(tenure[d_page[x]] == x + 1);
       answered[REQ(x)] = 1;
       Free(x)
     }
  od
}

proctype Prefill(byte x) {
  do
  :: d_step { write[x] == W_ASKED && !crashed[x] -> write[x] = W_POSTED }
  :: d_step { write[x] == W_ASKED && abort_sent[x] && !crashed[x] -> write[x] = W_REFUSED; ack_sent[x] = 1 }
#ifdef M_ACK_TOO_EARLY
  :: d_step { (write[x] == W_POSTED || write[x] == W_HALF) && abort_sent[x] && !ack_sent[x] && !crashed[x] -> ack_sent[x] = 1 }
#endif
  /* The network. */
  :: d_step { write[x] == W_POSTED -> half0[write_to[x]] = REQ(x) + 1; write[x] = W_HALF }
#ifdef M_DONE_TOO_EARLY
  :: d_step { write[x] == W_HALF && !crashed[x] && !done_sent[x] && run_d[x] == D_ASKED -> done_sent[x] = 1 }
#endif
  :: d_step {
       write[x] == W_HALF ->
       half1[write_to[x]] = REQ(x) + 1;
       write[x] = W_LANDED;
       if
       :: !crashed[x] -> done_sent[x] = 1
       :: else
       fi
     }
  od
}

proctype Faults() {
  do
  :: d_step {
       !quiet && crashes ->
       crashes--;
       i = 0;
       do
       :: i < RUNS ->
          if
          :: write[i] != W_NONE -> crashed[i] = 1
          :: else
          fi;
          i++
       :: else -> break
       od
     }
  :: d_step { !quiet -> quiet = 1 }
  od
}

proctype Ending() {
  timeout -> d_step {
    i = 0;
    do
    :: i < RUNS -> assert(run_d[i] == D_IDLE || run_d[i] == D_OVER); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < DPAGES -> assert(state[i] == FREE); i++
    :: else -> break
    od
  }
}

init {
  byte x;
  atomic {
    for (x : 0 .. RUNS - 1) { d_page[x] = NONE }
    for (x : 0 .. REQS - 1) { run_d[x * LIVES] = D_WAITING }
    for (x : 0 .. RUNS - 1) {
      run Decode(x);
      run Prefill(x)
    }
    run Faults();
    run Ending()
  }
}
