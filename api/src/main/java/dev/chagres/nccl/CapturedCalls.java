package dev.chagres.nccl;

import dev.chagres.internal.memory.Capture;
import java.util.ArrayList;
import java.util.List;

/**
 * The calls of communicators that a graph has recorded: at each launch a rank waits for its peers before the first of them. The
 * communicators stay open as long as the graph, since destroying one would wait for the graph's end.
 *
 * <p>Threading: the device's thread.
 */
final class CapturedCalls implements Runnable {
    private final List<RankCalls> members = new ArrayList<>();
    private final List<CallCounts.Together> calls = new ArrayList<>();

    private CapturedCalls(Capture capture) {
        capture.onEnd(() -> members.forEach(RankCalls::releaseFromGraph));
    }

    /** Records the calls that {@code member} has counted and not passed to NCCL. */
    static void add(Capture capture, RankCalls member) {
        capture.beforeLaunch(CapturedCalls.class, () -> new CapturedCalls(capture))
                .add(member);
    }

    private void add(RankCalls member) {
        int index = members.indexOf(member);
        if (index < 0) {
            members.add(member);
            member.keepForGraph();
            calls.add(member.counts().take(null));
        } else {
            member.counts().take(calls.get(index));
        }
    }

    @Override
    public void run() {
        for (int i = 0; i < members.size(); i++) {
            members.get(i).endpoint().ensureUsable();
        }
        for (int i = 0; i < members.size(); i++) {
            members.get(i).launches(calls.get(i));
        }
        // A peer that calls one by one reaches the other communicators only after the launch.
        RankCalls first = members.getFirst();
        try {
            first.meet();
            first.recorder().enqueued();
            for (int i = 0; i < members.size(); i++) {
                members.get(i).counts().given(calls.get(i));
            }
        } finally {
            first.leave();
        }
    }
}
