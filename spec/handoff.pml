/*
 * The handoff of KV pages between a prefill and a decode worker, with the gateway, the fabric and the client around it.
 *
 * One process does everything: each option of its loop is one atomic action of somebody, and Spin tries them in every order. What
 * can go wrong (streams that break, reads that tear, silence, crashes, cancels, a faulty peer) happens at any time until `faults` are
 * used up, or given up.
 * Nothing is repeated without bound, so that every execution ends; at its end everybody must be through and every page back. That,
 * and the absence of cycles (spec/check), is the liveness part; assertions on the way are the safety part.
 *
 * A page's content is two halves, since reads and steps are not atomic. A half is 0 or the identity of what was computed into it.
 * A checksum is the pair of halves. A tenure's generation is its run, since a run reserves once.
 *
 * M_... leave one rule out: spec/check shows that each is found. Actions print a line, beginning with SIM, from which the simulator
 * plays a trail on the code (sim/trail.h).
 */
#ifndef REQS
#define REQS 2
#endif
#ifndef LIVES
#define LIVES 2 /* attempts of a request */
#endif
#ifndef DPAGES
#define DPAGES 2
#endif
#ifndef PPAGES
#define PPAGES 2
#endif
#ifndef WINDOW
#define WINDOW 1 /* pages of reads in flight */
#endif
#ifndef FAULTS
#define FAULTS 2 /* in one execution, of any kind */
#endif
#ifdef ONLY_SILENCE
#define BREAKS 0
#else
#define BREAKS faults /* streams that break, a faulty peer, crashes: what is left are silence, refusals and the gateway's faults */
#endif
#ifndef CRASHES
#define CRASHES 0 /* of each side, beside FAULTS */
#endif
#define RUNS (REQS * LIVES)
#define NP 2 /* pages of the longest prompt */
#define NONE 15
#define PLACEHOLDER 14

#define REQ(run) ((run) / LIVES)
#define AT(run, k) ((run) * NP + (k))
/* Requests of one domain have the same prompt, so that they may share; those of two domains never may. */
#define CLASS(r) (same_domain -> 0 : (r))
#define IDENTITY(r, k) (1 + CLASS(r) * NP + (k))

/* Gateway. */
#define G_NEW 0
#define G_RUNNING 1
#define G_ANSWERED 2
#define G_ERROR 3
/* Pages of either side. */
#define FREE 0
#define HELD 1
#define CACHED 2
#define RETIRED 3
/* Runs at decode. */
#define D_IDLE 0
#define D_QUEUED 1
#define D_FETCHING 2
#define D_DRAINING 3
#define D_READY 4
#define D_STEPPING 5
#define D_OVER 6
/* Runs at prefill. */
#define P_IDLE 0
#define P_QUEUED 1
#define P_RUNNING 2
#define P_STEPPING 3
#define P_HOLDING 4
#define P_OVER 5
/* Reads. */
#define R_NONE 0
#define R_WAITING 1 /* for the window */
#define R_FIRST 2   /* its first half is next */
#define R_SECOND 3
#define R_LANDED 4
/* Announcements. */
#define A_NONE 0
#define A_SENT 1
#define A_TAKEN 2

bit same_domain;
byte pages[REQS]; /* of each prompt */

byte gateway[REQS], life[REQS];

byte d_state[DPAGES], d_tenure[DPAGES], d_half0[DPAGES], d_half1[DPAGES];
byte d_reads[DPAGES], d_pins[DPAGES];
bit d_fenced[DPAGES]; /* retired while a step was under way */
byte stepping_d = NONE, step_page_d; /* the run in it, and where its own row goes */
byte window;

byte run_d[RUNS], d_page[RUNS * NP];
bit covered[RUNS * NP], pinned[RUNS * NP], open_d[RUNS], cancel[RUNS], closed_peer[RUNS];
byte read[RUNS * NP], read_to[RUNS * NP], source[RUNS * NP], seal_identity[RUNS * NP], seal_half0[RUNS * NP], seal_half1[RUNS * NP];

byte p_state[PPAGES], p_half0[PPAGES], p_half1[PPAGES];
bit p_fenced[PPAGES];
byte stepping_p = NONE, step_page_p;

byte run_p[RUNS], p_page[RUNS * NP], next[RUNS];
bit open_sent[RUNS], open_p[RUNS], rejected[RUNS];
byte end_sent[RUNS]; /* 1: an error, 2: OK */
byte sent[RUNS * NP], sent_page[RUNS * NP], sent_identity[RUNS * NP], sent_half0[RUNS * NP], sent_half1[RUNS * NP];

byte faults = FAULTS; /* that may still happen, of any kind */
byte p_crashes = CRASHES, d_crashes = CRASHES; /* beside those */
#ifdef M_CHECKED_AT_SOURCE
bit checked[RUNS * NP];
#endif
#ifdef M_SECOND_READ
byte z_to = NONE, z_from; /* the first read, which was given up and not awaited */
#endif
#ifdef M_PIN_AFTER_LOOKUP
byte looked[RUNS];
#endif

hidden byte i, j, k, who, page, ok;

/* ---- gateway ---- */

/* Generation::MayRetry: another attempt, or an error for the client. */
inline TryAgain(r) {
  if
  :: gateway[r] == G_RUNNING && life[r] + 1 < LIVES ->
     life[r] = life[r] + 1;
     run_d[r * LIVES + life[r]] = D_QUEUED
  :: gateway[r] == G_RUNNING && life[r] + 1 >= LIVES -> gateway[r] = G_ERROR
  :: else
  fi
}

/* A token came: I8, only the current attempt's counts. */
inline TakeToken(x) {
#ifdef M_TWO_STREAM
  if
  :: gateway[REQ(x)] == G_RUNNING || gateway[REQ(x)] == G_ANSWERED ->
     assert(x == REQ(x) * LIVES + life[REQ(x)]);
     gateway[REQ(x)] = G_ANSWERED
  :: else
  fi
#else
  if
  :: gateway[REQ(x)] == G_RUNNING && x == REQ(x) * LIVES + life[REQ(x)] -> gateway[REQ(x)] = G_ANSWERED
  :: else
  fi
#endif
}

/*
 * What nobody looks at again is set to zero, for then states that differ in nothing else are one: what is known of a message that was
 * taken, of a read that has ended, of a run that is over. It changes nothing of what can happen.
 */
inline ForgetMessage(x, o) {
  sent_page[AT(x, o)] = 0;
  sent_identity[AT(x, o)] = 0;
  sent_half0[AT(x, o)] = 0;
  sent_half1[AT(x, o)] = 0
}

inline ForgetRead(x, o) {
  read_to[AT(x, o)] = 0;
  source[AT(x, o)] = 0;
  seal_identity[AT(x, o)] = 0;
  seal_half0[AT(x, o)] = 0;
  seal_half1[AT(x, o)] = 0
}

/* ---- decode ---- */

inline ReleaseAtDecode(x) {
  j = 0;
  do
  :: j < NP ->
     page = d_page[AT(x, j)];
     if
     :: page == NONE
     :: page != NONE && pinned[AT(x, j)] ->
        d_pins[page] = d_pins[page] - 1;
     :: else ->
        d_state[page] = RETIRED;
        d_tenure[page] = 0;
        d_fenced[page] = (stepping_d != NONE)
     fi;
     d_page[AT(x, j)] = NONE;
     pinned[AT(x, j)] = 0;
     covered[AT(x, j)] = 0;
     j++
  :: else -> break
  od;
  cancel[x] = 0;
#ifndef M_NO_DRAIN
  closed_peer[x] = 0;
#endif
  run_d[x] = D_OVER
}

#ifdef M_FREE_AT_TIMEOUT
/* The mistake: the pages are free at once, whatever is still on its way into them. */
inline FreeAtOnce(x) {
  j = 0;
  do
  :: j < NP ->
     page = d_page[AT(x, j)];
     if
     :: page != NONE && !pinned[AT(x, j)] ->
        d_state[page] = FREE;
        d_tenure[page] = 0;
        d_half0[page] = 0;
        d_half1[page] = 0;
        d_page[AT(x, j)] = NONE
     :: else
     fi;
     j++
  :: else -> break
  od;
  ReleaseAtDecode(x);
  TryAgain(REQ(x))
}
#endif

/* DecodeHandoff::FailWith: the stream is closed; what is not read yet never will be. */
inline Fail(x) {
  run_d[x] = D_DRAINING;
  open_d[x] = 0;
  end_sent[x] = 0;
  j = 0;
  do
  :: j < NP ->
     if
     :: read[AT(x, j)] == R_WAITING -> read[AT(x, j)] = R_NONE; ForgetRead(x, j)
     :: else
     fi;
     j++
  :: else -> break
  od
}

#define IS_FREE(p) (d_state[p] == FREE)
#define IS_EVICTABLE(p) (d_state[p] == CACHED && d_pins[p] == 0)
#ifdef M_KEY_WITHOUT_DOMAIN
#define IS_HIT(x, p) (d_state[p] == CACHED)
#else
#define IS_HIT(x, p) (d_state[p] == CACHED && d_half0[p] == IDENTITY(REQ(x), 0))
#endif
#if DPAGES == 2
#define D_FREE (IS_FREE(0) + IS_FREE(1))
#define ANY_EVICTABLE (IS_EVICTABLE(0) || IS_EVICTABLE(1))
#define ANY_HIT(x) (IS_HIT(x, 0) || IS_HIT(x, 1))
#else
#define D_FREE (IS_FREE(0) + IS_FREE(1) + IS_FREE(2) + IS_FREE(3))
#define ANY_EVICTABLE (IS_EVICTABLE(0) || IS_EVICTABLE(1) || IS_EVICTABLE(2) || IS_EVICTABLE(3))
#define ANY_HIT(x) (IS_HIT(x, 0) || IS_HIT(x, 1) || IS_HIT(x, 2) || IS_HIT(x, 3))
#endif
/* Reuse is limited to whole pages before the last token. */
#ifdef M_PIN_AFTER_LOOKUP
#define FOUND(x) (looked[x] < DPAGES -> d_state[looked[x]] == CACHED : 0)
#else
#define FOUND(x) (pinned[AT(x, 0)] || (pages[REQ(x)] == 2 && ANY_HIT(x)))
#endif
#define CAN_ADMIT(x) (D_FREE + FOUND(x) >= pages[REQ(x)])

inline FindCached(x) {
  page = NONE;
  i = 0;
  do
  :: i < DPAGES ->
     if
     :: page == NONE && IS_HIT(x, i) -> page = i
     :: else
     fi;
     i++
  :: else -> break
  od
}

inline EvictOther(but) {
  i = 0;
  do
  :: i < DPAGES && (i == but || !IS_EVICTABLE(i)) -> i++
  :: else -> break
  od;
  if
  :: i < DPAGES ->
     d_state[i] = RETIRED;
     d_tenure[i] = 0;
     d_fenced[i] = (stepping_d != NONE)
  :: else
  fi
}

inline PinCached(x) {
  d_pins[page] = d_pins[page] + 1;
  d_page[AT(x, 0)] = page;
  pinned[AT(x, 0)] = 1
}

/* Engine::Start: look-up, pin and reserve are one action, and a queued run holds nothing. */
inline Admit(x) {
  if
  :: FOUND(x) && !pinned[AT(x, 0)] ->
#ifdef M_PIN_AFTER_LOOKUP
     page = looked[x];
#else
     FindCached(x);
#endif
     PinCached(x)
  :: else
  fi;
  covered[AT(x, 0)] = pinned[AT(x, 0)];
  k = pinned[AT(x, 0)];
  i = 0;
  do
  :: i < DPAGES && k < pages[REQ(x)] ->
     if
     :: IS_FREE(i) ->
        assert(d_half0[i] == 0 && d_half1[i] == 0); /* I7: zeroed */
#ifndef M_STALE_GENERATION /* or only this would be found of it */
        assert(d_reads[i] == 0 && d_pins[i] == 0);  /* I2 */
#endif
        d_state[i] = HELD;
        d_tenure[i] = x + 1;
        d_page[AT(x, k)] = i;
        k++
     :: else
     fi;
     i++
  :: else -> break
  od;
  run_d[x] = D_FETCHING;
  open_d[x] = 1;
  open_sent[x] = 1
}

inline AllCovered(x) {
  ok = 1;
  j = 0;
  do
  :: j < pages[REQ(x)] ->
     ok = ok && covered[AT(x, j)];
     j++
  :: else -> break
  od
}

inline Cover(x, o) {
  covered[AT(x, o)] = 1;
  AllCovered(x);
  if
  :: ok ->
     run_d[x] = D_READY;
     open_d[x] = 0; /* decode closes the stream, not prefill */
     end_sent[x] = 0
  :: else
  fi
}

/* DecodeHandoff::OnReadDone, with VerifyArrived and Engine::Adopt. */
inline Judge(x, o) {
  page = d_page[AT(x, o)];
  ok = 1;
#if !defined(M_NO_CHECKSUM) && !defined(M_CHECKED_AT_SOURCE)
  ok = ok && (d_half0[page] == seal_half0[AT(x, o)] && d_half1[page] == seal_half1[AT(x, o)]);
#endif
#ifndef M_NO_IDENTITY
  ok = ok && (seal_identity[AT(x, o)] == IDENTITY(REQ(x), o));
#endif
#ifdef M_CHECKED_AT_SOURCE
  ok = ok && checked[AT(x, o)];
#endif
  ok = ok && (d_tenure[page] == x + 1);
  if
  :: ok -> Cover(x, o)
  :: else -> Fail(x)
  fi
}

#ifdef M_STALE_GENERATION
/* The mistake: a verdict counts for whoever has the page by now. */
inline AdoptForOwner(o) {
  who = d_tenure[page] - 1;
  if
  :: run_d[who] == D_FETCHING && d_page[AT(who, o)] == page && read[AT(who, o)] == R_NONE -> Cover(who, o)
  :: else
  fi
}
#endif

/* I6, and what everything else is for: what a step reads is this request's own. */
inline ReadPages(x, first) {
  j = 0;
  do
  :: j < pages[REQ(x)] ->
     page = d_page[AT(x, j)];
     assert(page != NONE);                                 /* I5: all of its own tokens */
     assert(pinned[AT(x, j)] || d_tenure[page] == x + 1);  /* I2 */
     assert((first -> d_half0[page] : d_half1[page]) == IDENTITY(REQ(x), j));
     j++
  :: else -> break
  od
}

/* ---- prefill ---- */

/* PrefillHandoff::OnStreamClosed. Unpin means retire; a step that writes is a fence. */
inline ReleaseAtPrefill(x) {
  j = 0;
  do
  :: j < NP ->
     page = p_page[AT(x, j)];
     if
     :: page != NONE ->
        p_state[page] = RETIRED;
        p_fenced[page] = (stepping_p != NONE);
        p_page[AT(x, j)] = NONE
     :: else
     fi;
     j++
  :: else -> break
  od;
  open_p[x] = 0;
  next[x] = (stepping_p == x -> next[x] : 0);
  run_p[x] = P_OVER
}

/* A stream that decode has closed brings it nothing any more. */
inline EndStream(x, how) { end_sent[x] = (open_d[x] -> how : 0) }

inline ReserveAtPrefill(x, first, most) {
  assert(!rejected[x]); /* I1 */
  k = first;
  i = 0;
  do
  :: i < PPAGES && k < most ->
     if
     :: p_state[i] == FREE ->
        assert(p_half0[i] == 0 && p_half1[i] == 0);
        p_state[i] = HELD;
        p_page[AT(x, k)] = i;
        k++
     :: else
     fi;
     i++
  :: else -> break
  od
}

/* What a step computes a page from, and what its seal says of that: the tokens that were fed, never those that were asked for. */
#ifdef B_PLACEHOLDER
#define FED(x, k) PLACEHOLDER
#else
#define FED(x, k) IDENTITY(REQ(x), k)
#endif
#ifdef M_IDENTITY_FROM_REQUEST
#define NAMED(x, k) IDENTITY(REQ(x), k)
#else
#define NAMED(x, k) FED(x, k)
#endif

inline Announce(x, o, p, identity) {
  sent[AT(x, o)] = A_SENT;
  sent_page[AT(x, o)] = p;
  sent_identity[AT(x, o)] = identity;
  sent_half0[AT(x, o)] = p_half0[p];
  sent_half1[AT(x, o)] = p_half1[p]
}

#if PPAGES == 2
#define P_FREE ((p_state[0] == FREE) + (p_state[1] == FREE))
#else
#define P_FREE ((p_state[0] == FREE) + (p_state[1] == FREE) + (p_state[2] == FREE) + (p_state[3] == FREE))
#endif
#ifdef M_PAGE_BY_PAGE
#define P_NEEDS(x) 1
#define HAS_ROOM(x) (p_page[AT(x, pages[REQ(x)] - 1)] != NONE)
#else
#define HAS_ROOM(x) (p_page[AT(x, next[x])] != NONE)
#define P_NEEDS(x) (pages[REQ(x)] - covered[AT(x, 0)])
#endif

#include "decode.pml"
#include "prefill.pml"
#include "world.pml"
