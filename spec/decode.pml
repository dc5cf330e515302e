/* Who acts at the gateway and at decode, and when. Included in handoff.pml. */

proctype Gateway(byte r) {
  do
  :: d_step { gateway[r] == G_NEW -> printf("SIM start %d\n", r); gateway[r] = G_RUNNING; run_d[r * LIVES] = D_QUEUED; skip }
  /* The client goes away. */
  :: d_step {
       faults && gateway[r] == G_RUNNING ->
       printf("SIM leave %d\n", r * LIVES + life[r]);
       faults--;
       gateway[r] = G_ERROR;
       cancel[r * LIVES + life[r]] = 1
       ;
       skip
     }
  /* The stream to decode breaks, or seems to: the old attempt may run on for a while. */
  :: d_step {
       faults && gateway[r] == G_RUNNING ->
       printf("SIM break %d\n", r * LIVES + life[r]);
       faults--;
       cancel[r * LIVES + life[r]] = 1;
       TryAgain(r)
       ;
       skip
     }
  od
}

proctype DecodeRun(byte x) {
  do
#ifdef M_PIN_WHILE_QUEUED
  :: d_step {
       run_d[x] == D_QUEUED && !cancel[x] && !pinned[AT(x, 0)] && pages[REQ(x)] == 2 && ANY_HIT(x) && D_FREE == 0 ->
       printf("SIM wait %d\n", x);
       FindCached(x);
       PinCached(x)
       ;
       skip
     }
#endif
#ifdef M_PIN_AFTER_LOOKUP
  :: d_step {
       run_d[x] == D_QUEUED && looked[x] == NONE && pages[REQ(x)] == 2 && ANY_HIT(x) && D_FREE == 0 ->
       printf("SIM wait %d\n", x);
       FindCached(x);
       looked[x] = page;
       EvictOther(page)
       ;
       skip
     }
#endif
  /* PrefixCache::Evict, for one that waits. */
  :: d_step {
       run_d[x] == D_QUEUED && !CAN_ADMIT(x) && ANY_EVICTABLE ->
       printf("SIM evict %d\n", x);
       EvictOther(NONE)
       ;
       skip
     }
  :: d_step { run_d[x] == D_QUEUED && cancel[x] -> printf("SIM cancel %d\n", x); ReleaseAtDecode(x); skip }
  :: d_step { run_d[x] == D_QUEUED && !cancel[x] && CAN_ADMIT(x) -> printf("SIM admit %d\n", x); Admit(x); skip }
  /* DecodeHandoff::OnCancel. */
  :: d_step {
       run_d[x] == D_FETCHING && cancel[x] ->
       printf("SIM cancel %d\n", x);
       Fail(x)
       ;
       skip
     }
  :: d_step { (run_d[x] == D_READY || run_d[x] == D_STEPPING) && cancel[x] -> printf("SIM cancel %d\n", x); ReleaseAtDecode(x); skip }
  /* DecodeHandoff::OnStreamEnded: before coverage, whatever the status. */
  :: d_step {
       run_d[x] == D_FETCHING && end_sent[x] ->
       printf("SIM ended %d\n", x);
#ifdef M_END_IS_SUCCESS
       if
       :: end_sent[x] == 2 && read[AT(x, 0)] == R_NONE && read[AT(x, 1)] == R_NONE -> run_d[x] = D_READY; open_d[x] = 0
       :: else -> Fail(x)
       fi
#else
       Fail(x)
#endif
       ;
       skip
     }
#ifdef M_PEERS_LENGTH
  /* What the peer has announced and closed with is taken for all there is. */
  :: d_step { run_d[x] == D_FETCHING && end_sent[x] == 2 && covered[AT(x, 0)] -> run_d[x] = D_READY; open_d[x] = 0; skip }
#endif
  /* DecodeHandoff::OnTick: silence closes the stream and the peer's connection, and frees nothing. */
  :: d_step {
       faults && run_d[x] == D_FETCHING ->
       printf("SIM silent %d\n", x);
       faults--;
#ifdef M_FREE_AT_TIMEOUT
       open_d[x] = 0;
       FreeAtOnce(x)
#else
       closed_peer[x] = 1;
       Fail(x)
#endif
       ;
       skip
     }
  /* DecodeHandoff::ReleaseWhenQuiet. */
  :: d_step {
#ifdef M_NO_DRAIN
       run_d[x] == D_DRAINING ->
#else
       run_d[x] == D_DRAINING && read[AT(x, 0)] < R_FIRST && read[AT(x, 1)] < R_FIRST ->
#endif
       ok = cancel[x];
       ReleaseAtDecode(x);
       if
       :: ok
       :: else -> TryAgain(REQ(x))
       fi
       ;
       skip
     }
  /* Engine::Step: tags are compared before it and after it, before a token is sampled. */
  :: d_step {
       run_d[x] == D_READY && stepping_d == NONE ->
       printf("SIM begin-decode %d\n", x);
       ReadPages(x, 1);
       stepping_d = x;
       step_page_d = d_page[AT(x, pages[REQ(x)] - 1)];
       run_d[x] = D_STEPPING
       ;
       skip
     }
  :: d_step {
       stepping_d == x ->
       printf("SIM decode %d\n", x);
       stepping_d = NONE;
       if
       :: run_d[x] == D_STEPPING -> ReadPages(x, 0)
       :: else
       fi;
       d_half1[step_page_d] = IDENTITY(REQ(x), pages[REQ(x)] - 1); /* its own row, in its last page */
       step_page_d = 0;
       i = 0;
       do
       :: i < DPAGES -> d_fenced[i] = 0; i++
       :: else -> break
       od;
       if
       :: run_d[x] == D_STEPPING ->
          TakeToken(x);
          who = d_page[AT(x, 0)];
          ok = !pinned[AT(x, 0)];
          ReleaseAtDecode(x);
          if /* PrefixCache::Insert: a whole page stays */
          :: ok && pages[REQ(x)] == 2 -> d_state[who] = CACHED
          :: else
          fi
       :: else /* released meanwhile: nothing is sampled */
       fi
       ;
       skip
     }
  od
}

/* One page of one run: its announcement, and its read. */
proctype Transfer(byte x; byte o) {
  do
  /* DecodeHandoff::OnAnnounced. Late messages, of a run that is over, have no effect (I8). */
  :: d_step {
       sent[AT(x, o)] == A_SENT && run_d[x] == D_FETCHING && open_d[x] ->
       printf("SIM announced %d %d\n", x, o);
       sent[AT(x, o)] = A_TAKEN;
       if
       :: covered[AT(x, o)] || read[AT(x, o)] != R_NONE
#ifndef M_NO_IDENTITY
       :: sent_identity[AT(x, o)] != IDENTITY(REQ(x), o) -> Fail(x)
#endif
       :: else ->
          read[AT(x, o)] = R_WAITING;
          source[AT(x, o)] = sent_page[AT(x, o)];
          seal_identity[AT(x, o)] = sent_identity[AT(x, o)];
          seal_half0[AT(x, o)] = sent_half0[AT(x, o)];
          seal_half1[AT(x, o)] = sent_half1[AT(x, o)]
       fi;
       ForgetMessage(x, o)
       ;
       skip
     }
#ifdef M_SAME_ATTEMPT
  /* The retry has its predecessor's attempt: what was meant for that one is taken. */
  :: d_step {
       sent[AT(x, o)] == A_SENT && run_d[x] == D_OVER && x % LIVES + 1 < LIVES && run_d[x + 1] == D_FETCHING &&
       read[AT(x + 1, o)] == R_NONE && !covered[AT(x + 1, o)] ->
       printf("SIM announced %d %d\n", x, o);
       sent[AT(x, o)] = A_TAKEN;
       read[AT(x + 1, o)] = R_WAITING;
       source[AT(x + 1, o)] = sent_page[AT(x, o)];
       seal_identity[AT(x + 1, o)] = sent_identity[AT(x, o)];
       seal_half0[AT(x + 1, o)] = sent_half0[AT(x, o)];
       seal_half1[AT(x + 1, o)] = sent_half1[AT(x, o)];
       ForgetMessage(x, o)
       ;
       skip
     }
#endif
  :: d_step {
       sent[AT(x, o)] == A_SENT && !open_d[x] && run_d[x] == D_OVER ->
       printf("SIM announced %d %d\n", x, o);
       sent[AT(x, o)] = A_TAKEN;
       ForgetMessage(x, o)
       ;
       skip
     }
  /* TransferWindow. */
  :: d_step {
       read[AT(x, o)] == R_WAITING && run_d[x] == D_FETCHING && window < WINDOW ->
       window++;
       d_reads[d_page[AT(x, o)]] = d_reads[d_page[AT(x, o)]] + 1;
       read_to[AT(x, o)] = d_page[AT(x, o)];
       read[AT(x, o)] = R_FIRST
       ;
       skip
     }
  :: d_step {
       read[AT(x, o)] == R_FIRST && !closed_peer[x] ->
       printf("SIM first-half %d %d\n", x, o);
       d_half0[read_to[AT(x, o)]] = p_half0[source[AT(x, o)]];
#ifdef M_DONE_TOO_EARLY
       read[AT(x, o)] = R_LANDED
#else
       read[AT(x, o)] = R_SECOND
#endif
       ;
       skip
     }
  :: d_step {
       read[AT(x, o)] == R_SECOND && !closed_peer[x] ->
       printf("SIM second-half %d %d\n", x, o);
       d_half1[read_to[AT(x, o)]] = p_half1[source[AT(x, o)]];
       read[AT(x, o)] = R_LANDED
       ;
       skip
     }
#ifdef M_CHECKED_AT_SOURCE
  /* The source is looked at, and not what arrived. */
  :: d_step {
       read[AT(x, o)] == R_SECOND && !closed_peer[x] && !checked[AT(x, o)] && p_half0[source[AT(x, o)]] == seal_half0[AT(x, o)] &&
       p_half1[source[AT(x, o)]] == seal_half1[AT(x, o)] ->
       checked[AT(x, o)] = 1
       ;
       skip
     }
#endif
#ifdef M_SECOND_READ
  /* A read that takes long is asked for again; the first one is still on its way. */
  :: d_step {
       read[AT(x, o)] == R_SECOND && z_to == NONE ->
       printf("SIM read-again %d %d\n", x, o);
       z_to = read_to[AT(x, o)];
       z_from = source[AT(x, o)];
       read[AT(x, o)] = R_FIRST
       ;
       skip
     }
#endif
  /* The end of a read, with the verdict on what arrived; or its failure. */
  :: d_step {
       read[AT(x, o)] == R_LANDED || ((read[AT(x, o)] == R_FIRST || read[AT(x, o)] == R_SECOND) && closed_peer[x]) ->
       printf("SIM read %d %d\n", x, o);
       ok = (read[AT(x, o)] == R_LANDED);
       read[AT(x, o)] = R_NONE;
       window--;
       d_reads[read_to[AT(x, o)]] = d_reads[read_to[AT(x, o)]] - 1;
       if
       :: run_d[x] == D_FETCHING && ok -> Judge(x, o)
       :: run_d[x] == D_FETCHING && !ok -> Fail(x)
#ifdef M_STALE_GENERATION
            :: run_d[x] != D_FETCHING && ok && d_tenure[read_to[AT(x, o)]] != 0 -> page = read_to[AT(x, o)]; AdoptForOwner(o)
#endif
       :: else
       fi;
       ForgetRead(x, o)
       ;
       skip
     }
  od
}
