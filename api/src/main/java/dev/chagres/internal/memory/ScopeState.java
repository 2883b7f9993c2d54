package dev.chagres.internal.memory;

/**
 * What tensors need to know of the scope that owns them: its device, and whether what they hold is still theirs.
 *
 * <p>Threading: the device's thread.
 */
public final class ScopeState {
    private static final int NEVER = -1;

    private final DeviceState device;
    private final String name;
    private int epoch;
    private int issues;
    private boolean live = true;
    /** The epoch in which the scope was closed for good. */
    private int lastEpoch = NEVER;

    /** Makes the state of an open scope. */
    public ScopeState(DeviceState device, String name) {
        this.device = device;
        this.name = name;
    }

    /** Returns the device whose memory the scope hands out. */
    public DeviceState device() {
        return device;
    }

    /** Returns a number that is another one after each restart, opening and closing. */
    public int epoch() {
        return epoch;
    }

    /** Returns another number for each tensor that is handed out. */
    public int nextIssue() {
        return ++issues;
    }

    /** Returns whether the scope is open. */
    public boolean isLive() {
        return live;
    }

    /** Opens the scope again: what was handed out before is closed. */
    public void renew() {
        live = true;
        epoch++;
    }

    /** Closes everything that was handed out. */
    public void end() {
        live = false;
        epoch++;
    }

    /** Closes everything that was handed out, whose memory is handed out no more. */
    public void endForGood() {
        lastEpoch = epoch;
        end();
    }

    /** Returns whether memory that was handed out in {@code handedOut} was handed out to nobody else since. */
    public boolean holds(int handedOut) {
        return handedOut == (lastEpoch == NEVER ? epoch : lastEpoch);
    }

    /** Says why a tensor that was handed out in {@code handedOut} is closed. */
    public String whyClosed(int handedOut) {
        if (!live) {
            return "so is its scope";
        }
        return handedOut == epoch ? "so is the tensor that it is a view of" : "the scope was restarted since";
    }

    @Override
    public String toString() {
        return name;
    }
}
