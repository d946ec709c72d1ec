// A board that all ranks of a world see, for what nobody should wait for: a rank that looks now and
// then can do other work in between, where an operation of a communicator has a deadline.
#pragma once
#include <string>

#include "parallel/communicator.h"

namespace contexture::parallel {

// Puts a text under a name, in the place of an earlier one. Any of a rank's communicators will do:
// its world has one board.
void post(Communicator& communicator, const std::string& name, const std::string& text);

// "" where there is nothing yet. Throws once any rank of the world has failed, even one that this
// rank has nothing to do with.
std::string read(Communicator& communicator, const std::string& name);

}  // namespace contexture::parallel
