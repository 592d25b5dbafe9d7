"""Prompts of tokens: attention on them in bounded memory, and errors measured on them, with intervals.

    attention       softmax, linear and limit attention of a head, with their Jacobians in U and V in closed form
    online_softmax  softmax averages of a prompt that is never held whole
    streams         a random stream for each thing that is drawn
    batches         prompts in bounded memory, and how many a budget of random numbers allows
    errors          squared errors of attention against its limit, prompt by prompt
    curve           measured curves, with simultaneous intervals from resampling the prompts
    estimate        a number with its interval

May use: lib.tokens.
"""
