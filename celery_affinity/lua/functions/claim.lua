-- claim: pending -> inbox. Moves the best pending jobs to the most specialised free slots. Other arrows end with the
-- same move (`fill`); a claim goes on with the types that another arrow, or a claim, returned as `unfilled`.
-- RETURNS {unfilled}; unfilled: types, separated by blanks, whose pending jobs this call did not get to, since one call
-- moves MOST_MOVES jobs at most. The caller passes them to `claim`.
-- Cost: that of `fill`.
function functions.claim(ARGV)
    -- ARGV[1..]: types, encoded

    return { fill.fill(ARGV, "", settings_in_force.read(), slot_choice.view())[1] }
end
