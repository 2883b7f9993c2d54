package dev.chagres.nccl;

import dev.chagres.internal.memory.Capture;
import java.util.ArrayList;
import java.util.List;

/**
 * The calls of communicators that a graph has recorded: at each launch a rank meets its peers before the first of them. While the
 * graph lives the communicators stay open, for NCCL would wait for its end.
 *
 * <p>Threading: the device's thread.
 */
final class CapturedCalls implements Runnable {
    private final List<Endpoint> endpoints = new ArrayList<>();
    private final List<CallCounts.Together> calls = new ArrayList<>();

    private CapturedCalls(Capture capture) {
        capture.onEnd(() -> endpoints.forEach(Endpoint::releaseFromGraph));
    }

    /** Keeps the calls that {@code endpoint} has counted and not given to NCCL. */
    static void add(Capture capture, Endpoint endpoint) {
        capture.beforeLaunch(CapturedCalls.class, () -> new CapturedCalls(capture))
                .add(endpoint);
    }

    private void add(Endpoint endpoint) {
        int index = endpoints.indexOf(endpoint);
        if (index < 0) {
            endpoints.add(endpoint);
            endpoint.keepForGraph();
            calls.add(endpoint.counts().take(null));
        } else {
            endpoint.counts().take(calls.get(index));
        }
    }

    @Override
    public void run() {
        for (int i = 0; i < endpoints.size(); i++) {
            endpoints.get(i).ensureUsable();
        }
        for (int i = 0; i < endpoints.size(); i++) {
            endpoints.get(i).launches(calls.get(i));
        }
        // A peer that calls one by one comes to the other communicators only after the launch.
        Endpoint first = endpoints.getFirst();
        try {
            first.meet();
            first.recorder().enqueued();
            for (int i = 0; i < endpoints.size(); i++) {
                endpoints.get(i).counts().given(calls.get(i));
            }
        } finally {
            first.leave();
        }
    }
}
